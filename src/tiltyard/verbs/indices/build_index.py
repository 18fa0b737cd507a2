"""Builds, adds and drops indices. pylance builds the files and publishes nothing; the commit is ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyroaring import BitMap

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown, StorageError, TiltyardError
from tiltyard.format.fields import field_tree, parse_path
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.format.roaring import encode_roaring
from tiltyard.format.safe_text import check_text
from tiltyard.format.schema import arrow_from_fields
from tiltyard.format.values import IndexFile, IndexMetadata
from tiltyard.options import Storage
from tiltyard.transaction.apply.coverage import indices_of
from tiltyard.transaction.footprint import SINGLETONS
from tiltyard.transaction.operations import CreateIndex
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.columns.column_files import find_field, tree_of
from tiltyard.verbs.delete import Committed
from tiltyard.verbs.distributed.scan_tasks import ScanTask, scan_task
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.engine.pylance import lance_errors
from tiltyard.verbs.engine.reexecution import Execution, ReexecutionPolicy, run_verb
from tiltyard.verbs.engine.row_deletion import dataset_at

if TYPE_CHECKING:
    from lance import LanceDataset

Progress = Callable[[str, int, int | None], object]
"""Is told the stage of the work, how much of it is done, and of how much where that is known."""

DIRECTORY: Final = "_indices/"

TEXT: Final = frozenset({"INVERTED", "FTS"})
VECTOR: Final = frozenset({"IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ"})

DETAILS: Final[Mapping[str, str]] = {
    "BTREE": "BTreeIndexDetails",
    "BITMAP": "BitmapIndexDetails",
    "LABEL_LIST": "LabelListIndexDetails",
    "NGRAM": "NGramIndexDetails",
    "ZONEMAP": "ZoneMapIndexDetails",
    "BLOOMFILTER": "BloomFilterIndexDetails",
    "RTREE": "RTreeIndexDetails",
    "INVERTED": "InvertedIndexDetails",
    "FTS": "InvertedIndexDetails",
    **dict.fromkeys(sorted(VECTOR), "VectorIndexDetails"),
}
"""Each kind, and how the type of its details ends."""

_OPTIONS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("BITMAP", "LABEL_LIST", "NGRAM"), frozenset[str]()),
    "BTREE": frozenset({"zone_size"}),
    "ZONEMAP": frozenset({"rows_per_zone"}),
    "BLOOMFILTER": frozenset({"number_of_items", "probability"}),
    "RTREE": frozenset({"page_size"}),
    **dict.fromkeys(
        sorted(VECTOR),
        frozenset(
            [
                "metric",
                "num_partitions",
                "ivf_centroids",
                "pq_codebook",
                "num_sub_vectors",
                "accelerator",
                "shuffle_partition_batches",
                "shuffle_partition_concurrency",
                "filter_nan",
                "target_partition_size",
                "streaming_sample_rate",
                "streaming_coreset_rate",
                "streaming_refine_passes",
                "skip_transpose",
                "rabitq_model",
                "num_bits",
                "max_level",
                "m",
                "ef_construction",
                "index_file_version",
                "sample_rate",
                "max_iters",
            ]
        ),
    ),
}
"""What can be said of each kind, since pylance passes over what it does not know. Of text it checks that itself."""


@dataclass(frozen=True, slots=True)
class Build:
    """How an index is to be built.

    Attributes:
        column: the column, ``"s.x"`` for a member of a struct.
        kind: one of ``DETAILS``.
        options: what else pylance is to be told of this kind.
        progress: is told how far it is.
    """

    column: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidInput("An index is on one column, named by text.", argument="column")
        if self.kind not in DETAILS:
            raise InvalidInput(f"No such index type: {self.kind!r}.", argument="index_type", advice=f"Use one of {', '.join(DETAILS)}.")
        known = _OPTIONS.get(self.kind)
        if known is not None and (strange := sorted(set(self.options) - known)):
            advice = f"It has {', '.join(sorted(known))}." if known else "It has none."
            raise InvalidInput(f"{self.kind} has no option {strange[0]!r}.", argument=strange[0], advice=advice)


@dataclass(frozen=True, slots=True)
class NewIndex:
    """An index to be created: how it is built, what it is called, and whether it may take the place of another one."""

    build: Build
    name: str | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name)


def check_name(name: object) -> None:
    if not isinstance(name, str) or not name or name.startswith("__"):
        raise InvalidInput(f"{name!r} is not a valid index name.", argument="name", advice="Use text that does not begin with '__'.")
    check_text(name, "The name of an index", "name")


# ---- the verbs -------------------------------------------------------------------------------------------------------------


def create_index(
    access: TableAccess, read: ManifestFile, scheme: Scheme, new: NewIndex, properties: Mapping[str, str], policy: ReexecutionPolicy,
    runner: IndexRunner | None = None,
) -> Committed:  # fmt: skip
    """Builds an index over all rows of a version and adds it. What others append meanwhile is not in it.

    ``runner`` has segments of it built elsewhere, each over some fragments.
    """

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        name = _name_for(new, manifest)
        taken = named(manifest, name)
        if taken and not new.replace:
            raise AlreadyExists(f"There is an index {name!r} already.", name=name, advice="Pass replace=True, or another name.")
        find_field(tree_of(manifest), new.build.column, "column")
        if runner is None or new.build.kind in VECTOR:  # the parts of a vector index share what they learn from all rows
            made = build_segment(access, manifest, new.build, name, [fragment.id for fragment in manifest.fragments])
        else:
            task = IndexTask(scan_task(access, manifest), new.build, _working_name(access, manifest, new.build, name))
            made = _merged(access, dataset_at(access, manifest), list(runner(task)), name)
        return commit_segments(access, run, (made,), taken, properties, manifest.fragments.live_rows())

    return run_verb(access, read, scheme, execute, policy)


def drop_index(
    access: TableAccess, read: ManifestFile, scheme: Scheme, name: str, properties: Mapping[str, str], policy: ReexecutionPolicy
) -> Committed:
    """Takes an index out of the table, all its segments. Its files stay as long as an older version names them."""
    check_name(name)

    def execute(run: Execution) -> Committed:
        manifest = run.read.manifest
        return commit_segments(access, run, (), segments_of(manifest, name), properties, 0)

    return run_verb(access, read, scheme, execute, policy)


def named(manifest: Manifest, name: str) -> tuple[IndexMetadata, ...]:
    return tuple(index for index in indices_of(manifest) if index.name == name)


def segments_of(manifest: Manifest, name: str) -> tuple[IndexMetadata, ...]:
    """The segments of an index that must be there."""
    found = named(manifest, name)
    if not found:
        known = sorted({index.name for index in indices_of(manifest) if index.name not in SINGLETONS})
        there = f"it has {', '.join(known[:10])}" if known else "it has none"
        raise NotFound(f"Version {manifest.version} has no index {name!r}; {there}.", name=name)
    return found


def _name_for(new: NewIndex, manifest: Manifest) -> str:
    """The name asked for; else the column's, with a number where an index of another kind has that."""
    if new.name is not None:
        return new.name
    plain = f"{new.build.column}_idx"
    taken = {index.name: index for index in indices_of(manifest)}
    names = (plain if number == 1 else f"{plain}_{number}" for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken or _is_same(taken[name], new.build, manifest))


def _is_same(index: IndexMetadata, build: Build, manifest: Manifest) -> bool:
    return _is_on(index, build.column, manifest) and index.details is not None and index.details[0].endswith(DETAILS[build.kind])


def _is_on(index: IndexMetadata, column: str, manifest: Manifest) -> bool:
    tree = field_tree(manifest.fields)
    return [tree.path(tree.by_id[number]) for number in index.fields if number in tree.by_id] == [column]


# ---- segments --------------------------------------------------------------------------------------------------------------


def build_segment(access: TableAccess, manifest: Manifest, build: Build, name: str, fragments: Sequence[int]) -> IndexMetadata:
    """Writes the files of one segment over some fragments of a version."""
    if build.kind == "BITMAP" and not fragments:
        return empty_bitmap(access, manifest, build.column, name)
    dataset = dataset_at(access, manifest)
    made = _built(access, dataset, build, _working_name(access, manifest, build, name), fragments)
    # Of text, what is there now is only the first step.
    return _merged(access, dataset, [made], name) if build.kind in TEXT else as_metadata(made, name)


def _working_name(access: TableAccess, manifest: Manifest, build: Build, name: str) -> str:
    """pylance refuses to build under the name of an index on another column, though it need not stay; the name is given afterwards."""
    free = all(_is_on(index, build.column, manifest) for index in named(manifest, name))
    return name if free else access.runtime.random.uuid()


@dataclass(frozen=True)
class IndexTask:
    """An index that is to be built over a version in segments, by other processes. It can be pickled.

    Attributes:
        scan: the version.
        build: what is built.
        name: what pylance is to call it.
    """

    scan: ScanTask
    build: Build
    name: str

    def segment(self, fragments: Sequence[int]) -> Any:
        """Writes the files of one segment, over some fragments; returns what pylance reports of it."""
        access = open_access(self.scan.uri, Storage(self.scan.storage_options))
        return _built(access, self.scan.dataset(), self.build, self.name, fragments)


IndexRunner = Callable[[IndexTask], Iterable[Any]]
"""Has segments built that cover all fragments of a version, each once."""


def _built(access: TableAccess, dataset: LanceDataset, build: Build, working_name: str, fragments: Sequence[int]) -> Any:
    """Has pylance write one segment."""
    options = dict(build.options)
    kind: Any = build.kind
    if build.kind not in VECTOR and build.kind not in TEXT and options:
        from lance.indices import IndexConfig

        kind, options = IndexConfig(build.kind.lower(), options), {}
    if build.progress is not None:
        told = build.progress
        options["progress_callback"] = lambda event: told(event.stage, event.completed or 0, event.total)
    with lance_errors(access, "build index", dataset.version):
        return dataset.create_index_uncommitted(
            build.column, kind, name=working_name, replace=True, train=bool(fragments), fragment_ids=list(fragments), **options
        )


def _merged(access: TableAccess, dataset: LanceDataset, staged: Sequence[Any], name: str) -> IndexMetadata:
    """Segments as one."""
    parts = [as_metadata(item, name) for item in staged]
    try:
        with lance_errors(access, "build index", dataset.version):
            made = as_metadata(dataset.merge_existing_index_segments(list(staged)), name)
    except TiltyardError as error:
        discard_segments(access, parts, error)
        raise
    discard_segments(access, [part for part in parts if part.uuid != made.uuid])
    return replace(made, dataset_version=min(part.dataset_version for part in parts))


def as_metadata(made: Any, name: str) -> IndexMetadata:
    """What pylance says of a segment it wrote."""
    return IndexMetadata(
        uuid=str(made.uuid),
        fields=tuple(made.fields),
        name=name,
        dataset_version=made.dataset_version,
        fragment_bitmap=encode_roaring(BitMap(list(made.fragment_ids))),
        details=made.index_details,
        index_version=made.index_version,
        created_at=int(made.created_at.timestamp() * 1000) if made.created_at else None,
        files=tuple(IndexFile(file.path, file.size_bytes) for file in made.files or ()),
        covering_fields=tuple(made.covering_fields),
    )


def commit_segments(
    access: TableAccess,
    run: Execution,
    new: tuple[IndexMetadata, ...],
    old: tuple[IndexMetadata, ...],
    properties: Mapping[str, str],
    rows: int,
) -> Committed:
    """Commits segments that were built on the version of this run, in place of others."""
    transaction = Transaction(run.read.manifest.version, access.runtime.random.uuid(), CreateIndex(new, old), properties)
    try:
        return access.committer.commit(transaction, run.read, run.scheme, run.policy, counts={"indexed": rows})
    except TiltyardError as error:
        discard_segments(access, new, error)
        raise


def discard_segments(access: TableAccess, segments: Iterable[IndexMetadata], failure: TiltyardError | None = None) -> None:
    """Removes the files of segments no version will ever name, unless the failure leaves that open. The rest is cleanup's."""
    if isinstance(failure, OutcomeUnknown):
        return
    for segment in segments:
        with suppress(StorageError):
            for info in list(access.store.list(f"{DIRECTORY}{segment.uuid}/")):
                access.store.delete(info.path)


def empty_bitmap(access: TableAccess, manifest: Manifest, column: str, name: str) -> IndexMetadata:
    """Writes the files of a BITMAP segment that covers no fragment of a version.

    Raises:
        InvalidInput: there is no such column, or it is of a type that the index cannot hold.
    """
    import lance

    tree = field_tree(manifest.fields)
    field = next((field for field in manifest.fields if tree.path(field) == column), None)
    if field is None:
        raise InvalidInput(f"There is no column {column!r}.", argument="column")
    schema = pa.schema([arrow_from_fields(manifest.fields, {}).field(parse_path(column)[0])])
    with tempfile.TemporaryDirectory(prefix="tiltyard-") as scratch:
        with lance_errors(access, "write index"):
            lance.write_dataset(schema.empty_table(), scratch).create_scalar_index(column, "BITMAP", name=name)
        beside = open_access(scratch, Storage(durability="os"))
        [made] = indices_of(beside.load(*beside.head()).manifest)
        segment = replace(
            made,
            uuid=access.runtime.random.uuid(),
            fields=(field.id,),
            name=name,
            dataset_version=manifest.version,
        )
        for file in made.files:
            access.store.put(f"_indices/{segment.uuid}/{file.path}", beside.store.get(f"_indices/{made.uuid}/{file.path}"))
    return segment
