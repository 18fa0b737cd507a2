"""What lies in the simulated store, what data files would hold if they were real, and a note of everything that was ever put there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Final, Literal

from pyroaring import BitMap

from tiltyard.format.deletions import decode_deletions, encode_deletions
from tiltyard.format.manifest import Manifest
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import parse_manifest_name
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.values import DataFile, DataFragment, DeletionFile, Field
from tiltyard.storage.memory import MemoryStore
from tiltyard.transaction.log import VERSIONS
from tiltyard.transaction.operations import Operation
from tiltyard_proofs.simulator.model import Effect, Row, State, Value, Violation
from tiltyard_proofs.simulator.stepping import START, Turns

URI: Final = "memory://simulated"

Outcome = Literal["pending", "committed", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class FileModel:
    """What a data file holds: rows by identity, in order, and columns by field id."""

    rids: tuple[str, ...]
    columns: Mapping[int, tuple[Value, ...]]


@dataclass(slots=True)
class Attempt:
    """A transaction that somebody tried to commit, and what he heard of it."""

    uuid: str
    actor: int
    intention: str
    operation: Operation
    effect: Effect
    read_version: int
    outcome: Outcome = "pending"
    version: int | None = None
    """Where it was committed, or tried last."""
    error: str = ""
    troubled: bool = False
    """Whether the store failed its writer at some time."""
    late: bool = False
    """Whether it took a number that a cleanup had set free."""


@dataclass(frozen=True, slots=True)
class Landing:
    """A manifest that appeared."""

    version: int
    data: bytes
    actor: int
    path: str
    replaced: bool
    """Whether one was there already: nobody may ever do that."""
    head: int
    """The highest version before it."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A row where it is: offset in its fragment, identity, values."""

    offset: int
    rid: str
    row: Row


class NotingStore(MemoryStore):
    """A memory store that remembers every object it ever held, which manifests appeared when, and earlier listings of versions."""

    def __init__(self, objects: Mapping[str, tuple[bytes, object]], archive: Mapping[str, bytes], head: int) -> None:
        super().__init__(URI)
        self._objects = dict(objects)  # type: ignore[arg-type]
        self.archive = dict(archive)
        self.turns: Turns | None = None
        self.landings: list[Landing] = []
        self.removed_by: dict[int, int] = {}
        """Who removed a version: by its place among the landings, or by its negative number if it was there at the beginning."""
        self._newest_landing: dict[str, int] = {}
        self.head_version = head
        self.listings: list[tuple[str, ...]] = [tuple(self.names(VERSIONS))]
        self.written: set[str] = set()
        """What was written by a store call, as only the commit loop does it."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        self._note(path, data, replaced=False)

    def put(self, path: str, data: bytes) -> None:
        replaced = path in self._objects
        super().put(path, data)
        self._note(path, data, replaced=replaced)

    def delete(self, path: str) -> None:
        there = path in self._objects
        super().delete(path)
        if there and path.startswith(VERSIONS) and path.endswith(".manifest"):
            self._note_removal(path)
            self.listings.append(tuple(self.names(VERSIONS)))

    def _note_removal(self, path: str) -> None:
        parsed = parse_manifest_name(path[len(VERSIONS) :])
        if parsed is not None:
            landing = self._newest_landing.get(path)
            self.removed_by[-parsed.version if landing is None else landing] = self._actor()

    def has(self, path: str) -> bool:
        return path in self._objects

    def objects(self) -> Mapping[str, tuple[bytes, object]]:
        return self._objects

    def stale_names(self, prefix: str, back: int) -> tuple[str, ...] | None:
        """A listing of versions as it was some changes ago."""
        return self.listings[max(len(self.listings) - 1 - back, 0)] if prefix == VERSIONS else None

    def _note(self, path: str, data: bytes, *, replaced: bool) -> None:
        self.archive[path] = data
        self.written.add(path)
        if not (path.startswith(VERSIONS) and path.endswith(".manifest")):
            return
        parsed = parse_manifest_name(path[len(VERSIONS) :])
        if parsed is None:
            return
        self.landings.append(Landing(parsed.version, data, self._actor(), path, replaced, self.head_version))
        self._newest_landing[path] = len(self.landings) - 1
        self.head_version = max(self.head_version, parsed.version)
        self.listings.append(tuple(self.names(VERSIONS)))

    def _actor(self) -> int:
        return self.turns.current.number if self.turns is not None and self.turns.current is not None else -1


@cache
def _encoded(offsets: tuple[int, ...]) -> tuple[bool, bytes]:
    """Most of the time of a deletion goes into this, and there are few different ones."""
    return encode_deletions(BitMap(offsets))


@cache
def _decoded_template(data: bytes, path: str, version: int) -> ManifestFile:
    return decode_manifest_file(data, source=path, version=version)


@dataclass(slots=True)
class World:
    """One run's store and the model beside it."""

    store: NotingStore
    files: dict[str, FileModel]
    states: dict[int, State]
    """What the versions there were at the start must say."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    index_values: dict[str, Mapping[object, Value]] = field(default_factory=dict)
    """By uuid of an index: its values by row id or by fragment and offset."""
    by_row_id: set[str] = field(default_factory=set)
    """Indices that know rows by row id."""
    acknowledged: int = 0
    """The highest version somebody was told of."""
    problems: list[str] = field(default_factory=list)
    """What actors themselves found wrong."""
    late: int = 0
    """Versions that appeared under a number a cleanup had set free, by writers who could not tell any more."""
    numbers: dict[str, int] = field(default_factory=dict)
    _manifests: dict[bytes, ManifestFile] = field(default_factory=dict)
    _rows: dict[object, tuple[Placed, ...]] = field(default_factory=dict)
    _deleted: dict[tuple[str, int], tuple[bytes, BitMap]] = field(default_factory=dict)

    def fresh(self, actor: str) -> str:
        """A name nobody else uses, the same in every run of the same schedule."""
        number = self.numbers.get(actor, 0)
        self.numbers[actor] = number + 1
        return f"{actor}-{number}"

    def manifest(self, path: str, data: bytes) -> ManifestFile:
        """A manifest that was read, decoded once; what actors and checks of ours use where the code under test does not decode itself."""
        parsed = parse_manifest_name(path[len(VERSIONS) :])
        assert parsed is not None
        if parsed.version in self.states:
            return _decoded_template(data, path, parsed.version)
        found = self._manifests.get(data)
        if found is None:
            found = self._manifests[data] = decode_manifest_file(data, source=path, version=parsed.version)
        return found

    # ---- writing files ----

    def write_file(self, actor: str, rids: Sequence[str], columns: Mapping[int, Sequence[Value]]) -> DataFile:
        """A data file: a few bytes in the store, and its rows in the model. Nobody can see it yet, so this is no step."""
        made = self.planned_file(actor, rids, columns)
        self.put(f"data/{made.path}", made.path.encode())
        return made

    def planned_file(self, actor: str, rids: Sequence[str], columns: Mapping[int, Sequence[Value]]) -> DataFile:
        """What a data file will hold, under a name of its own; somebody else puts it into the store."""
        path = f"{self.fresh(actor)}.lance"
        self.files[path] = FileModel(tuple(rids), {number: tuple(values) for number, values in columns.items()})
        fields = tuple(sorted(columns))
        return DataFile(path, fields, tuple(range(len(fields))))

    def put(self, path: str, data: bytes) -> None:
        self.store._objects[path] = (data, START + timedelta(seconds=self._elapsed()))
        self.store.archive[path] = data

    def _elapsed(self) -> float:
        turns = self.store.turns
        return turns.current.time.elapsed if turns is not None and turns.current is not None else 0.0

    def write_deletions(self, actor: str, fragment: DataFragment, deleted: BitMap, read_version: int) -> DeletionFile:
        bitmap, data = _encoded(tuple(deleted))
        number = sum(ord(letter) << (8 * place) for place, letter in enumerate(self.fresh(actor)))  # an id that nobody else has
        made = DeletionFile(bitmap, read_version, number % 2**63, len(deleted))
        self.put(made.path(fragment.id), data)
        return made

    # ---- reading rows ----

    def deleted(self, fragment: DataFragment) -> BitMap:
        """Offsets that the fragment's deletion file names, which is checked."""
        if fragment.deletion_file is None:
            return BitMap()
        path = fragment.deletion_file.path(fragment.id)
        data = self.store.archive.get(path)
        if data is None:
            raise Violation(f"I2: {path} was never written")
        known = self._deleted.get((path, fragment.physical_rows))
        if known is None or known[0] is not data:
            found = decode_deletions(
                data,
                bitmap=fragment.deletion_file.bitmap,
                physical_rows=fragment.physical_rows,
                expected_count=fragment.deletion_file.deleted_rows,
                source=path,
            )
            known = self._deleted[path, fragment.physical_rows] = (data, found)
        return known[1]

    def physical(self, fragment: DataFragment, fields: Sequence[Field]) -> tuple[Placed, ...]:
        """All rows of a fragment, deleted ones too."""
        files = fragment.files
        key = (fragment.id, tuple([(file.path, file.fields) for file in files]), tuple([(column.id, column.name) for column in fields]))
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = tuple(self._placed(fragment, fields))
        return found

    def _placed(self, fragment: DataFragment, fields: Sequence[Field]) -> Iterator[Placed]:
        unknown = next((file.path for file in fragment.files if file.path not in self.files), None)
        if unknown is not None:
            raise Violation(f"I2: data/{unknown} was never written")
        models = [self.files[file.path] for file in fragment.files]
        rids = models[0].rids if models else ()
        if any(model.rids != rids for model in models) or len(rids) != fragment.physical_rows:
            raise Violation(f"I3: the files of fragment {fragment.id} hold different rows")
        sources: list[tuple[str, tuple[Value, ...] | None]] = []
        for column in fields:
            homes = [model for file, model in zip(fragment.files, models, strict=True) if column.id in file.fields]
            if len(homes) > 1:
                raise Violation(f"I3: {column.name} of fragment {fragment.id} stands in two files")
            sources.append((column.name, homes[0].columns.get(column.id) if homes else None))
        for offset, rid in enumerate(rids):
            yield Placed(offset, rid, {name: None if values is None else values[offset] for name, values in sources})

    def live(self, fragment: DataFragment, fields: Sequence[Field]) -> list[Placed]:
        gone = self.deleted(fragment)
        rows = self.physical(fragment, fields)
        return [row for row in rows if row.offset not in gone] if gone else list(rows)

    def rows_of(self, manifest: Manifest) -> dict[str, Row]:
        """The rows a reader of this version sees, by identity."""
        found: dict[str, Row] = {}
        for fragment in manifest.fragments:
            for row in self.live(fragment, manifest.fields):
                if row.rid in found:
                    raise Violation(f"I3: row {row.rid} is there twice")
                found[row.rid] = row.row
        return found

    def row_ids(self, fragment: DataFragment) -> list[int]:
        if fragment.row_ids is None:
            raise Violation(f"I3: fragment {fragment.id} has no row ids")
        return [int(number) for number in decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source="").to_numpy()]
