"""The table every run begins with, made once and copied: three fragments of three rows, one row deleted, and what a scenario needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_to_pb
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import DataFormat, IndexMetadata, WriterVersion
from tiltyard.transaction.apply.next_manifest import Creation, Stamp, apply, create
from tiltyard.transaction.footprint import MEM_WAL
from tiltyard.transaction.log import TRANSACTIONS, VersionLog
from tiltyard.transaction.operations import Append, CreateIndex, Operation, Overwrite
from tiltyard.transaction.transaction import Transaction
from tiltyard_proofs.simulator.index_intentions import build
from tiltyard_proofs.simulator.intentions import FIELDS, KEYED_FIELDS, SHARD, Built, Intention, View, built
from tiltyard_proofs.simulator.model import Effect, State, Value
from tiltyard_proofs.simulator.stepping import START
from tiltyard_proofs.simulator.world import FileModel, NotingStore, World

WRITER: Final = WriterVersion("tiltyard", "simulated")
SCHEME: Final = Scheme.V2
TAGGED: Final = 2
"""A version that is tagged, so that no cleanup takes it: the one to restore."""
FIRST_RESERVED: Final = 3
RESERVED: Final = 4


@dataclass(frozen=True, slots=True)
class Kind:
    """What sort of table it is."""

    stable: bool = False
    keyed: bool = False
    indexed: bool = False
    logged: bool = False
    """Whether it has a write-ahead log."""


@dataclass(frozen=True, slots=True)
class Template:
    """A table to copy, and the model of it."""

    objects: Mapping[str, tuple[bytes, object]]
    archive: Mapping[str, bytes]
    files: Mapping[str, FileModel]
    states: Mapping[int, State]
    index_values: Mapping[str, Mapping[object, Value]]
    by_row_id: frozenset[str]
    head: ManifestFile = field(repr=False)

    def world(self) -> World:
        """A copy that one run may change."""
        store = NotingStore(self.objects, self.archive, self.head.manifest.version)
        return World(
            store,
            dict(self.files),
            dict(self.states),
            index_values=dict(self.index_values),
            by_row_id=set(self.by_row_id),
        )


@cache
def template(kind: Kind) -> Template:
    fields = KEYED_FIELDS if kind.keyed else FIELDS
    names = tuple(column.name for column in fields)
    world = World(NotingStore({}, {}, 0), {}, {})
    log = VersionLog(world.store)
    file: ManifestFile | None = None
    state = State(names, {})
    for number, step in enumerate(_steps(kind), start=1):
        made: Built | None
        if file is None:
            empty = create(Overwrite((), fields), Creation(DataFormat(), kind.stable), _stamp(Transaction(0, _uuid(0), Append())))
            view = View(world, empty, "base")
            rows = view.new_rows((0, 1, 2))
            made = built(Overwrite((view.new_fragment(rows),), fields), Effect(added=dict(rows)))
        else:
            view = View(world, file.manifest, "base")
            made = _log_set_up(view.manifest.version) if step is None else build(view, step)
        assert made is not None
        file = _committed(world, made.operation, file, number, kind)
        state = made.effect.on(state, world.states.__getitem__)
        world.states[number] = state
    assert file is not None
    world.put("_refs/tags/kept.json", b'{"branch":null,"version":%d,"manifestSize":1}' % TAGGED)
    head = log.load(file.manifest.version, SCHEME)
    store = world.store
    return Template(
        dict(store.objects()), dict(store.archive), world.files, world.states, world.index_values, frozenset(world.by_row_id), head
    )


def _steps(kind: Kind) -> list[Intention | None]:
    """What makes the table; None sets up the write-ahead log."""
    steps: list[Intention | None] = [Intention("append"), Intention("append", (3, 4, 5)), Intention("append", (6, 7, 8))]
    steps.append(Intention("delete", (8,)))
    steps += [None] if kind.logged else []
    steps += [Intention("index", number=1)] if kind.indexed else []
    return [*steps, Intention("reserve", number=RESERVED)]


def _log_set_up(version: int) -> Built:
    table = pb.CompactedSsTable(shard_id=uuid_to_pb(SHARD), generation=1)
    details = pb.MemWalIndexDetails(num_shards=1, compacted_sstables=[table]).SerializeToString(deterministic=True)
    uuid = "00000000-0000-0000-0000-0000000000aa"
    entry = IndexMetadata(uuid, (), MEM_WAL, version, None, ("/lance.table.MemWalIndexDetails", details), 0)
    return built(CreateIndex((entry,)), Effect(generations={SHARD: 1}))


def _uuid(number: int) -> str:
    return f"00000000-0000-0000-0000-{number:012d}"


def _stamp(transaction: Transaction) -> Stamp:
    return Stamp(int(START.timestamp()) * 1_000_000_000, WRITER, transaction.file_name)


def _committed(world: World, operation: Operation, before: ManifestFile | None, number: int, kind: Kind) -> ManifestFile:
    transaction = Transaction(number - 1, _uuid(number), operation)
    if before is None:
        assert isinstance(operation, Overwrite)
        manifest = create(operation, Creation(DataFormat(), kind.stable), _stamp(transaction))
    else:
        manifest = apply(operation, before.manifest, _stamp(transaction))
    inline = transaction.to_bytes()
    data, made = encode_manifest_file(manifest, inline, before)
    world.put(TRANSACTIONS + transaction.file_name, inline)
    world.put(manifest_path(number, SCHEME), data)
    return made
