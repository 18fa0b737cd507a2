"""Is this table sound? Every invariant that its files alone can show, with the file and the version where it breaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.format.flags import Feature
from tiltyard.format.hint import HINT_PATH, decode_hint
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import decode_manifest_file
from tiltyard.format.names import VersionName, parse_manifest_name
from tiltyard.format.rowids import decode_row_ids
from tiltyard.format.values import TOMBSTONE, DataFile, DataFragment
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import open_store
from tiltyard.transaction.floor import read_floor
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS
from tiltyard.verbs.blobs import blob_directory, missing_blobs
from tiltyard.verbs.deletions import check_deletions, read_deletions
from tiltyard.verbs.keys import KnownKeys, check_comparable, in_words, key_batches, primary_key_of
from tiltyard.verbs.lance import lance_errors, open_dataset
from tiltyard.verbs.place import Place
from tiltyard.verbs.refs import Branches, Tags
from tiltyard.verbs.struck import dataset_at


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant."""

    invariant: str
    text: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        uri: the table.
        versions: how many versions were looked at.
        files: how many distinct files they name.
        problems: broken invariants; none in a sound table.
        orphans: files no version names: leftovers of failed attempts, or work under way.
        not_checked: invariants that could not be checked here, and why.
    """

    uri: str
    versions: int
    files: int
    problems: tuple[Problem, ...]
    orphans: tuple[str, ...]
    not_checked: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    pylance_sees: bool = True
    """Whether pylance can open what lies in this store."""
    by_directory: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """All files there are; those of blobs have a directory for each data file."""
    orphans_known: bool = True
    """Whether all was read that can name a file."""
    deletions_read: set[tuple[str, int, int]] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def add(self, invariant: str, text: str, version: int | None = None) -> None:
        self.problems.append(Problem(invariant, text, version))


def check_table(place: Place, versions: Iterable[int] | None = None) -> CheckReport:
    """Checks I1, I2 and I4 to I9 of the promises, and that pylance sees the same rows (I13).

    Raises:
        NotFound: there is no table, or no such version.
    """
    place.head()
    findings = _Findings()
    hint = _hint(place)  # before the versions: one that is committed meanwhile is then no contradiction
    there = place.log.versions()
    wanted = set(versions) if versions is not None else {name.version for name in there}
    missing = wanted - {name.version for name in there}
    if missing:
        raise NotFound(f"{place.store.uri} has no version {min(missing)}.", name=str(min(missing)))
    _gapless(place, there, findings)
    if hint is not None and hint > there[-1].version:
        findings.add("I9", f"the hint names version {hint}, the latest is {there[-1].version}")
    present = _present(place.store)
    findings.by_directory = {
        directory: tuple(paths) for directory, paths in itertools.groupby(sorted(present), lambda path: path[: path.rfind("/") + 1])
    }
    _detached(place, present, findings)
    latest: Manifest | None = None
    for name in there:
        if name.version in wanted:
            latest = _one_version(place, name, present, findings)
    if latest is not None:
        _unique_keys(place, latest, findings)
        _pylance_validates(place, latest, findings)
        _blobs_are_there(place, latest, present, findings)
    complete = wanted == {name.version for name in there} and not findings.problems and findings.orphans_known
    orphans = sorted(present - findings.named) if complete else []
    return CheckReport(
        place.store.uri, len(wanted), len(findings.named), tuple(findings.problems), tuple(orphans), tuple(findings.not_checked)
    )


def _gapless(place: Place, there: list[VersionName], findings: _Findings) -> None:
    """I1. Cleanup keeps tagged versions and fork points, so a gap above those alone is in order, and any gap below its floor."""
    numbers = [name.version for name in there]
    main = place if place.branch is None else None
    floor = read_floor(place.store).version
    kept = {number for number in numbers if number < floor}
    if main is not None:
        kept |= {tag.version for tag in Tags(main).values() if tag.branch is None}
        kept |= {branch.parent_version for branch in Branches(main).values() if branch.parent_branch is None}
    for before, after in itertools.pairwise(numbers):
        if after != before + 1 and not all(number in kept for number in numbers[: numbers.index(after)]):
            findings.add("I1", f"versions {before + 1} to {after - 1} are missing")


def _hint(place: Place) -> int | None:
    try:
        return decode_hint(place.store.get(HINT_PATH))
    except NotFound:
        return None


def _present(store: ObjectStore) -> set[str]:
    """All files of the kinds a version can name."""
    return {info.path for prefix in ("data/", "_deletions/", "_indices/", TRANSACTIONS) for info in store.list(prefix)}


def _detached(place: Place, present: set[str], findings: _Findings) -> None:
    """Versions beside the line of history: what they name is no orphan. Nothing else is asked of them."""
    for name in place.store.names(VERSIONS):
        parsed = parse_manifest_name(name)
        if parsed is None or not parsed.detached:
            continue
        try:
            manifest = decode_manifest_file(place.store.get(VERSIONS + name), source=VERSIONS + name, version=parsed.version).manifest
            directories = tuple(f"_indices/{index.uuid}/" for index in decode_indices(manifest, name))
        except TiltyardError as error:
            findings.not_checked.append(f"I8: detached version {parsed.version} cannot be read: {error}")
            findings.orphans_known = False
            continue
        if manifest.transaction_file:
            findings.named.add(TRANSACTIONS + manifest.transaction_file)
        for fragment in manifest.fragments:
            for file in fragment.files:
                _claim_data(file, findings)
            if fragment.deletion_file is not None:
                findings.named.add(fragment.deletion_file.path(fragment.id))
        findings.named.update(path for path in present if path.startswith(directories))
    findings.named &= present


def _claim_data(file: DataFile, findings: _Findings) -> None:
    """A data file and the blobs beside it belong to somebody."""
    if file.base_id is None and f"data/{file.path}" not in findings.named:
        findings.named.add(f"data/{file.path}")
        findings.named.update(findings.by_directory.get(blob_directory(file.path), ()))


def _one_version(place: Place, name: VersionName, present: set[str], findings: _Findings) -> Manifest | None:
    version = name.version
    try:
        file = place.trusted(place.log.load(version, name.scheme))
    except TiltyardError as error:
        findings.add("I2", str(error), version)
        return None
    manifest = file.manifest
    try:
        transaction = place.log.transaction_of(file)
    except NotFound:
        findings.not_checked.append(f"I7 for version {version}: it keeps no transaction")
    except (CorruptTable, StorageError) as error:
        findings.add("I2", str(error), version)
    else:
        first = findings.transactions.setdefault(transaction.uuid, version)
        if first != version:
            findings.add("I7", f"transaction {transaction.uuid} made version {first} already", version)
    if manifest.transaction_file:
        _require(TRANSACTIONS + manifest.transaction_file, present, findings, version)
    outside = _Outside(place, manifest)
    for fragment in manifest.fragments:
        try:
            _fragment(fragment, manifest, place, present, outside, findings)
        except InvalidInput as error:
            findings.add("I2", f"the base of fragment {fragment.id} cannot be opened: {error}", version)
    _indices(manifest, present, findings)
    _row_ids(manifest, findings)
    _pylance_agrees(place, manifest, findings)
    return manifest


def _require(path: str, present: set[str], findings: _Findings, version: int) -> None:
    findings.named.add(path)
    if path not in present:
        findings.add("I2", f"{path} is named but not there", version)


class _Outside:
    """Files in other bases, each opened once."""

    def __init__(self, place: Place, manifest: Manifest) -> None:
        self._place = place
        self._bases = {base.id: base for base in manifest.base_paths}
        self._stores: dict[int, ObjectStore] = {}

    def locate(self, base_id: int, directory: str, name: str) -> tuple[ObjectStore, str]:
        base = self._bases[base_id]
        if base_id not in self._stores:
            self._stores[base_id] = open_store(base.path, storage_options=self._place.storage_options)
        return self._stores[base_id], f"{directory}{name}" if base.is_dataset_root else name


def _fragment(fragment: DataFragment, manifest: Manifest, place: Place, present: set[str], outside: _Outside, findings: _Findings) -> None:
    mixed = bool(manifest.writer_flags & Feature.MIXED_FILE_VERSIONS)
    for file in fragment.files:
        _same_as_before(fragment, file, findings, manifest.version)
        if file.base_id is None:
            _claim_data(file, findings)
            _require(f"data/{file.path}", present, findings, manifest.version)
        else:
            _exists(*outside.locate(file.base_id, "data/", file.path), findings, manifest.version)
        if manifest.data_format and file.major >= 2 and not mixed and f"{file.major}.{file.minor}" != manifest.data_format.version:
            text = f"{file.path} has format {file.major}.{file.minor}, the table {manifest.data_format.version}"
            findings.add("I2", text, manifest.version)
    deletion = fragment.deletion_file
    if deletion is None:
        return
    path = deletion.path(fragment.id)
    store, where = place.store, path
    if deletion.base_id is None:
        _require(path, present, findings, manifest.version)
    else:
        store, where = outside.locate(deletion.base_id, "_deletions/", path.removeprefix("_deletions/"))
    key = f"{store.uri}/{where}"
    claim = (key, fragment.physical_rows, deletion.deleted_rows)
    if claim in findings.deletions_read:
        return
    findings.deletions_read.add(claim)
    try:
        read_deletions(store, where, fragment, deletion)
    except NotFound:
        if deletion.base_id is not None:
            findings.add("I2", f"{key} is named but not there", manifest.version)
    except (CorruptTable, StorageError) as error:
        findings.add("I5", str(error), manifest.version)


def _same_as_before(fragment: DataFragment, file: DataFile, findings: _Findings, version: int) -> None:
    """Files never change, so what two versions say of one must agree, but for columns that one of them no longer counts."""
    rows, fields, columns = findings.files.setdefault(
        f"{file.base_id}:{file.path}", (fragment.physical_rows, file.fields, file.column_indices)
    )
    alive = [(a, b) for a, b in zip(fields, file.fields, strict=False) if TOMBSTONE not in (a, b)]
    if rows != fragment.physical_rows or columns != file.column_indices or any(a != b for a, b in alive):
        findings.add("I2", f"another version says otherwise of the rows or columns of {file.path}", version)


def _exists(store: ObjectStore, path: str, findings: _Findings, version: int) -> None:
    try:
        store.head(path)
    except (NotFound, StorageError) as error:
        findings.add("I2", f"{store.uri}/{path} cannot be read: {error}", version)


def _indices(manifest: Manifest, present: set[str], findings: _Findings) -> None:
    try:
        indices = decode_indices(manifest, f"version {manifest.version}")
    except CorruptTable as error:
        findings.add("I2", str(error), manifest.version)
        return
    for index in indices:
        if index.base_id is not None:
            continue
        directory = f"_indices/{index.uuid}/"
        if index.files:
            for file in index.files:
                _require(directory + file.path, present, findings, manifest.version)
        findings.named.update(path for path in present if path.startswith(directory))


def _row_ids(manifest: Manifest, findings: _Findings) -> None:
    """Stable row ids: one for each physical row, none above the high-water mark."""
    if not manifest.writer_flags & Feature.STABLE_ROW_IDS:
        return
    for fragment in manifest.fragments:
        if fragment.row_ids is None:
            if not fragment.row_ids_spilled:
                findings.add("I6", f"fragment {fragment.id} has no row ids", manifest.version)
            continue
        try:
            ids = decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source=f"version {manifest.version}")
        except CorruptTable as error:
            findings.add("I6", str(error), manifest.version)
            continue
        if ids.highest() >= manifest.next_row_id:
            findings.add("I6", f"fragment {fragment.id} holds row id {ids.highest()}, not yet given out", manifest.version)


def _pylance_agrees(place: Place, manifest: Manifest, findings: _Findings) -> None:
    """I13, by counting: pylance opens the version and sees as many rows as we do."""
    try:
        uri = place.lance_uri
    except InvalidInput:
        if findings.pylance_sees:
            findings.not_checked.append("I13: pylance cannot see this store")
        findings.pylance_sees = False
        return
    try:
        with lance_errors(place, "count rows", manifest.version):
            counted = open_dataset(place, manifest.version).count_rows()
    except TiltyardError as error:
        findings.add("I13", f"pylance cannot open {uri}: {error}", manifest.version)
        return
    if counted != manifest.fragments.live_rows():
        findings.add("I13", f"pylance counts {counted} rows, we {manifest.fragments.live_rows()}", manifest.version)


def _pylance_validates(place: Place, manifest: Manifest, findings: _Findings) -> None:
    """I2, at the newest version that was looked at: the data files hold as many rows as the manifest says."""
    if not findings.pylance_sees:
        return
    try:
        check_deletions(place, manifest)
        with lance_errors(place, "validate data files", manifest.version):
            open_dataset(place, manifest.version).validate()  # type: ignore[no-untyped-call]
    except TiltyardError as error:
        findings.add("I2", str(error), manifest.version)


def _blobs_are_there(place: Place, manifest: Manifest, present: set[str], findings: _Findings) -> None:
    """I2 for files of blobs, which only the rows themselves name, at the newest version that was looked at."""
    if not findings.pylance_sees:
        return
    try:
        for path in missing_blobs(place, manifest, present):
            findings.add("I2", f"{path} holds a blob of a row but is not there", manifest.version)
    except TiltyardError as error:
        findings.not_checked.append(f"I2 for blobs: {error}")


def _unique_keys(place: Place, manifest: Manifest, findings: _Findings) -> None:
    """I4: no two live rows with one primary key, at the newest version that was looked at."""
    key = primary_key_of(manifest)
    if key is None:
        return
    try:
        pieces = list(key_batches(place, dataset_at(place, manifest), check_comparable(manifest, key)))
    except TiltyardError as error:
        findings.not_checked.append(f"I4: {error}")
        return
    doubled = KnownKeys(pa.concat_tables(pieces)).repeated() if pieces else ()
    if len(doubled):
        findings.add("I4", f"{len(doubled)} keys stand in more than one row, such as {in_words(doubled)[0]}", manifest.version)
