"""Every way in which two operations can meet, as operations: the conflict matrix as cases, in the order of the matrix.

Each case says what we expect and on whose word: ``spec`` where the published specification says so, ``stock`` where it is silent or
differs and we do what the stock library does, ``own`` where we decide otherwise than both. A few rows of the matrix are about something
outside the resolver and name the test that covers it, or the reason why there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pyroaring import BitMap

from tiltyard import ops
from tiltyard.conflicts import Context, Outcome
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import uuid_to_pb
from tiltyard.format.keys import PRIMARY_KEY, PRIMARY_KEY_POSITION
from tiltyard.transaction.footprint import FRAGMENT_REUSE, MEM_WAL
from tiltyard.transaction.key_filter import ITEMS, PLAIN_BYTES, PROBABILITY, bloom_of

Source = Literal["spec", "stock", "own"]
OUTCOMES = {".": Outcome.COMPATIBLE, "B": Outcome.REBASE, "R": Outcome.RETRY, "X": Outcome.INCOMPATIBLE}

SHARD, OTHER_SHARD = "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000b"
KEY, PRICE, NOTE = 0, 1, 2
SCHEMA = (ops.Field("id", KEY, -1, "int64", False), ops.Field("price", PRICE, -1, "double"), ops.Field("note", NOTE, -1, "string"))
FILE = ops.DataFile("a.lance", (KEY, PRICE, NOTE), (0, 1, 2))


@dataclass(frozen=True, slots=True)
class Side:
    """An operation, and what its transaction does not tell of it."""

    operation: ops.Operation
    rows: Mapping[int, BitMap] = field(default_factory=dict)
    reuse: bool = False
    keys: ops.KeyExistenceFilter | None = None
    base: Mapping[int, ops.DataFragment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    words: str
    mine: Side
    theirs: Side
    expected: Outcome
    source: Source
    stable_row_ids: bool = False
    row_map_certain: bool = False
    key_types: tuple[str, ...] = ("int64",)
    asks: Mapping[str, object] = field(default_factory=dict)
    """Members of the verdict and what they must be: the work a rebase has to do, what both sides touched."""

    @property
    def context(self) -> Context:
        return Context(
            my_base=self.mine.base,
            their_base=self.theirs.base,
            my_rows=self.mine.rows,
            their_rows=self.theirs.rows,
            my_keys=self.mine.keys,
            key_types=self.key_types,
            stable_row_ids=self.stable_row_ids,
            row_map_certain=self.row_map_certain,
            my_reuse=self.mine.reuse,
            their_reuse=self.theirs.reuse,
        )


@dataclass(frozen=True, slots=True)
class Outside:
    """A row that no resolver decides: where it is tested (file::test), or why it is not."""

    words: str
    covered_by: str = ""
    reason: str = ""


def _case(source: Source, words: str, mine: Side, theirs: Side, letter: str, stable: bool = False, **asks: object) -> Case:
    return Case(words, mine, theirs, OUTCOMES[letter], source, stable, asks=asks)


def spec(words: str, mine: Side, theirs: Side, letter: str, stable: bool = False, **asks: object) -> Case:
    return _case("spec", words, mine, theirs, letter, stable, **asks)


def stock(words: str, mine: Side, theirs: Side, letter: str, stable: bool = False, **asks: object) -> Case:
    return _case("stock", words, mine, theirs, letter, stable, **asks)


def own(words: str, mine: Side, theirs: Side, letter: str, stable: bool = False, **asks: object) -> Case:
    return _case("own", words, mine, theirs, letter, stable, **asks)


# ---- operations ------------------------------------------------------------------------------------------------------------


def fragment(number: int, deleted: int = 0, *files: ops.DataFile) -> ops.DataFragment:
    vector = ops.DeletionFile(True, 6, number, deleted) if deleted else None
    return ops.DataFragment(number, files or (FILE,), 10, vector)


NEW = (fragment(0),)


def append(keys: Iterable[int] | None = None) -> Side:
    return Side(ops.Append(NEW), keys=None if keys is None else filter_of(keys))


def delete(rows: Mapping[int, Iterable[int]], gone: tuple[int, ...] = (), known: bool = True) -> Side:
    vectors = {number: BitMap(offsets) for number, offsets in rows.items()}
    operation = ops.Delete(tuple(fragment(number, len(some)) for number, some in vectors.items()), gone, "...")
    return Side(operation, vectors if known else {})


def move(
    rows: Mapping[int, Iterable[int]],
    gone: tuple[int, ...] = (),
    known: bool = True,
    keys: ops.KeyExistenceFilter | None = None,
    assigned: tuple[int, ...] = (PRICE,),
    new: bool = True,
    progress: tuple[ops.CompactedSsTable, ...] = (),
) -> Side:
    """An update that writes changed rows elsewhere; with keys, a merge on the primary key."""
    vectors = {number: BitMap(offsets) for number, offsets in rows.items()}
    operation = ops.Update(
        removed_fragment_ids=gone,
        updated_fragments=tuple(fragment(number, len(some)) for number, some in vectors.items()),
        new_fragments=NEW if new else (),
        compacted_sstables=progress,
        fields_for_preserving_frag_bitmap=(KEY, PRICE, NOTE) if keys is not None else assigned,
        inserted_rows=keys,
    )
    return Side(operation, vectors if known else {})


def in_place(number: int, column: int, rows: Iterable[int] | None = None, silent: bool = False, unnamed: bool = False) -> Side:
    """An update that rewrites a column where it is. A silent one says so nowhere, an unnamed one does not say which column."""
    kept = replace(FILE, fields=tuple(-2 if one == column else one for one in FILE.fields))
    changed = fragment(number, 0, kept, ops.DataFile("b.lance", (column,), (0,)))
    operation = ops.Update(
        updated_fragments=(changed,),
        fields_modified=() if silent or unnamed else (column,),
        update_mode=ops.UpdateMode.REWRITE_ROWS if silent else ops.UpdateMode.REWRITE_COLUMNS,
        updated_fragment_offsets={} if rows is None else {number: bytes(BitMap(rows).serialize())},
    )
    return Side(operation, base={number: fragment(number)} if silent else {})


FIELDS_ALONE = Side(ops.Update(updated_fragments=(fragment(0),), fields_modified=(PRICE,)), {0: BitMap([5])})
"""An update that names the columns it rewrote in place, but has the mode of one that moves rows, as older writers leave it."""


def rewrite(*groups: tuple[int, ...], reuse: bool = False, maps: tuple[ops.RewrittenIndex, ...] = ()) -> Side:
    made = [ops.RewriteGroup(tuple(fragment(one) for one in old), (fragment(20 + old[0]),)) for old in groups]
    return Side(ops.Rewrite(tuple(made), maps), reuse=reuse)


def index(
    name: str,
    fields: tuple[int, ...] = (PRICE,),
    covers: Iterable[int] | None = (0, 1),
    number: int = 1,
    kind: str = "BTree",
    details: bytes = b"",
) -> ops.IndexMetadata:
    bitmap = None if covers is None else bytes(BitMap(covers).serialize())
    return ops.IndexMetadata(f"{number:032x}", fields, name, 6, bitmap, (f"/lance.table.{kind}IndexDetails", details))


def creates(*new: ops.IndexMetadata, drops: tuple[ops.IndexMetadata, ...] = ()) -> Side:
    return Side(ops.CreateIndex(new, drops))


def log_index(shard: str = SHARD, generation: int = 5, maintained: tuple[str, ...] = ()) -> ops.IndexMetadata:
    table = pb.CompactedSsTable(shard_id=uuid_to_pb(shard), generation=generation)
    details = pb.MemWalIndexDetails(num_shards=1, compacted_sstables=[table], maintained_indexes=maintained)
    return index(MEM_WAL, (), None, 8, "MemWal", details.SerializeToString())


REUSE = index(FRAGMENT_REUSE, (), (11,), 9, "FragmentReuse")
TRIM = creates(REUSE, drops=(REUSE,))
MEM_WAL_CREATION = creates(log_index())
INDEX = index("price_idx")
MAPS_INDEX = rewrite((0, 1), maps=(ops.RewrittenIndex(INDEX.uuid, f"{7:032x}"),))


def merge(*fields: ops.Field, promises: bool = True) -> Side:
    added = ops.Field("extra", 3, -1, "int32")
    return Side(ops.Merge(NEW, fields or (*SCHEMA, added), preserves_nullability=promises))


CAST = merge(SCHEMA[0], ops.Field("price", 3, -1, "float"), SCHEMA[2])


def project(*left: ops.Field, promises: bool = True) -> Side:
    return Side(ops.Project(left or SCHEMA, preserves_nullability=promises))


DROPS_PRICE = project(SCHEMA[0], SCHEMA[2])
DROPS_NOTE = project(SCHEMA[0], SCHEMA[1])
TIGHTENS = project(SCHEMA[0], SCHEMA[1], replace(SCHEMA[2], nullable=False), promises=False)


def overwrite(**config: str) -> Side:
    return Side(ops.Overwrite(NEW, SCHEMA, config_upsert_values=config))


def changes(entries: Mapping[str, str | None], whole: bool = False) -> ops.UpdateMap:
    return ops.UpdateMap(tuple(entries.items()), whole)


def config(entries: Mapping[str, str | None], whole: bool = False) -> Side:
    return Side(ops.UpdateConfig(config_updates=changes(entries, whole)))


def table_metadata(entries: Mapping[str, str | None], whole: bool = False) -> Side:
    return Side(ops.UpdateConfig(table_metadata_updates=changes(entries, whole)))


def schema_metadata(entries: Mapping[str, str | None]) -> Side:
    return Side(ops.UpdateConfig(schema_metadata_updates=changes(entries)))


def field_metadata(number: int, entries: Mapping[str, str | None]) -> Side:
    return Side(ops.UpdateConfig(field_metadata_updates={number: changes(entries)}))


DECLARES_KEY = field_metadata(0, {PRIMARY_KEY: "true"})
REPLACES_METADATA = Side(ops.UpdateConfig(field_metadata_updates={0: changes({}, whole=True)}))


def replaces(column: int, *fragments: int) -> Side:
    return Side(ops.DataReplacement(tuple(ops.Replacement(one, ops.DataFile("c.lance", (column,), (0,))) for one in fragments)))


def progress(generation: int, shard: str = SHARD) -> tuple[ops.CompactedSsTable, ...]:
    return (ops.CompactedSsTable(shard, generation),)


def log_state(generation: int, shard: str = SHARD) -> Side:
    return Side(ops.UpdateMemWalState(progress(generation, shard)))


def base(path: str, name: str | None = None, number: int = 0) -> Side:
    return Side(ops.UpdateBases((ops.BasePath(number, path, name=name),)))


# ---- key filters -----------------------------------------------------------------------------------------------------------


def key(number: int) -> bytes:
    return number.to_bytes(8, "little")


def filter_of(keys: Iterable[int], field_ids: tuple[int, ...] = (KEY,)) -> ops.KeyExistenceFilter:
    return ops.KeyExistenceFilter(field_ids, bloom=bloom_of(key(number) for number in keys))


def bits(data: bytes, items: int = ITEMS, probability: float = PROBABILITY) -> ops.KeyExistenceFilter:
    return ops.KeyExistenceFilter((KEY,), bloom=ops.BloomFilter(data, len(data) * 8, items, probability))


def inserts(*keys: int) -> Side:
    return move({}, keys=filter_of(keys))


def carries(keys: ops.KeyExistenceFilter) -> Side:
    return move({}, keys=keys)


def _bitmap_of(number: int) -> bytes:
    bloom = bloom_of([key(number)])
    return bloom.bitmap


def _one_bit_of(number: int) -> bytes:
    whole = _bitmap_of(number)
    at = next(position for position, byte in enumerate(whole) if byte)
    return bytes(PLAIN_BYTES)[:at] + bytes([whole[at] & -whole[at]]) + bytes(PLAIN_BYTES - at - 1)


def _all_but(number: int) -> bytes:
    return bytes(0xFF & ~byte for byte in _bitmap_of(number))


FULL, EMPTY = b"\xff" * PLAIN_BYTES, bytes(PLAIN_BYTES)

# ---- pairs whose verdict never depends on what was done --------------------------------------------------------------------

ALWAYS = """
                   Append Delete Overwrite CreateIndex Rewrite Merge Project Restore ReserveFragments Clone Update UpdateConfig DataReplacement UpdateMemWalState UpdateBases
Append               *      .       X          .          .      *      *       X          .            .     *         *              .                X              .
Delete               *      *       X          .          *      *      *       X          .            .     *         .              *                X              .
Overwrite            *      *       *          .          .      .      .       .          .            .     .         *              .                x              .
CreateIndex          .      *       X          *          *      *      *       X          .            .     *         .              *                *              .
Rewrite              *      *       X          *          *      R      .       X          .            .     *         .              *                .              .
Merge                *      R       X          *          R      *      X       X          .            .     R         *              R                X              .
Project              *      *       X          .          .      R      *       X          .            .     *         *              *                X              .
Restore              *      .       .          .          .      .      .       .          .            .     .         .              .                X              .
ReserveFragments     .      .       X          .          .      .      .       X          .            .     .         .              .                .              .
Clone                .      .       .          .          .      .      .       .          .            .     .         .              .                .              .
Update               *      *       X          .          *      R      *       X          .            .     *         *              *                *              .
UpdateConfig         *      .       *          .          .      *      .       *          .            .     *         *              *                .              .
DataReplacement      .      *       X          *          *      R      *       X          .            .     *         *              *                X              .
UpdateMemWalState    x      x       x          *          o      x      x       x          o            x     *         o              x                *              o
UpdateBases          .      .       .          .          .      .      .       .          .            .     .         .              .                .              *
"""  # noqa: E501
"""``.`` compatible, ``R`` retry, ``X`` incompatible, on the word of the specification; ``o`` and ``x`` compatible and incompatible on that
of the stock library; ``*`` depends and is spelled out below."""

UNREADABLE = "tests/transaction/test_history_window.py"
STRICT = "an overwrite here always looks at what came in between; without retries it only gives up the race for a version sooner"

# ---- pairs that depend on what was done, in the order of the matrix --------------------------------------------------------

ROW, OTHER_ROW = {0: [1]}, {0: [2]}

CASES: dict[tuple[str, str], tuple[Case | Outside, ...]] = {
    ("Append", "Append"): (
        Outside("a transaction in between is gone", UNREADABLE),
        spec("two appends", append(), append(), "."),
    ),
    ("Append", "Merge"): (
        stock("no promise on nulls", append(), merge(promises=False), "R"),
        spec("nulls still taken", append(), merge(), "."),
        spec("a nullable column added", append(), merge(), "."),
        spec("a computed column added", append(), merge(*SCHEMA, ops.Field("sum", 3, -1, "double")), "."),
    ),
    ("Append", "Project"): (
        stock("no promise on nulls", append(), project(promises=False), "R"),
        spec("nulls still taken", append(), DROPS_NOTE, "."),
        stock("a column takes no nulls any more", append(), TIGHTENS, "R"),
    ),
    ("Append", "Update"): (
        spec("a plain update", append(), move(ROW), "."),
        own("a merge inserted keys", append(), inserts(1), "R"),
    ),
    ("Delete", "Append"): (
        Outside("the version that was read is cleaned up", UNREADABLE),
        spec("rows added", delete(ROW), append(), "."),
    ),
    ("Delete", "Delete"): (
        spec("other rows of one fragment", delete(ROW), delete(OTHER_ROW), "B", merge_fragments=(0,), undecided_fragments=()),
        spec("the same row", delete(ROW), delete(ROW), "R", rows=((0, 1),), fragments=(0,)),
        spec("the same row, to be worked out again", delete(ROW), delete(ROW), "R"),
        spec("one row of two the same", delete({0: [1, 2]}), delete({0: [2, 3]}), "R", rows=((0, 2),)),
        spec("other fragments", delete(ROW), delete({1: [1]}), "."),
        spec("rows known to nobody", delete(ROW, known=False), delete(OTHER_ROW, known=False), "B", undecided_fragments=(0,)),
        spec("rows known of ours only", delete(ROW), delete(OTHER_ROW, known=False), "B", undecided_fragments=(0,)),
        spec("other fragments, rows unknown", delete(ROW, known=False), delete({1: [1]}, known=False), "."),
        spec("together the whole fragment", delete({0: range(5)}), delete({0: range(5, 10)}), "B", merge_fragments=(0,)),
        spec("they removed the fragment", delete(ROW), delete({}, (0,)), "R", fragments=(0,)),
        spec("we remove the fragment", delete({}, (0,)), delete(ROW), "R", fragments=(0,)),
        spec("we remove another fragment beside a row", delete(ROW, (1,)), delete(OTHER_ROW), "B", merge_fragments=(0,)),
        spec("we remove a fragment they deleted from", delete(ROW, (1,)), delete({1: [1]}), "R", fragments=(1,)),
        spec("rows deleted before", delete({0: [1, 5]}), delete({0: [2]}), "B"),
        spec("rows deleted before, and all the rest", delete({0: range(1, 5)}), delete({0: range(5, 10)}), "B"),
        spec("one of two commits in between", delete(ROW), delete({0: [3, 4]}), "B"),
        spec("other rows, stable row ids", delete(ROW), delete(OTHER_ROW), "B", stable=True),
        spec("the same row, stable row ids", delete(ROW), delete(ROW), "R", stable=True),
        spec("nothing to delete", delete({}), delete(ROW), "."),
    ),
    ("Delete", "Rewrite"): (
        spec("a rewritten fragment", delete(ROW), rewrite((0, 1)), "R", fragments=(0,)),
        spec("a rewritten fragment, to be worked out again", delete(ROW), rewrite((0, 1)), "R"),
        spec("other fragments", delete(ROW), rewrite((1, 2)), "."),
    ),
    ("Delete", "Merge"): (
        spec("a column added", delete(ROW), merge(), "R"),
        spec("all fragments listed", delete(ROW), merge(promises=False), "R"),
    ),
    ("Delete", "Project"): (
        spec("a column dropped", delete(ROW), DROPS_PRICE, "."),
        spec("no promise on nulls", delete(ROW), TIGHTENS, "."),
    ),
    ("Delete", "Update"): (
        spec("other rows", delete(ROW), move(OTHER_ROW), "B", merge_fragments=(0,)),
        spec("the same row", delete(ROW), move(ROW), "R", rows=((0, 1),)),
        spec("the same row, to be worked out again", delete(ROW), move(ROW), "R"),
        spec("other fragments", delete(ROW), move({1: [1]}), "."),
        stock("a column of the fragment rewritten in place", delete(ROW), in_place(0, PRICE), "R"),
        spec("a column of another fragment rewritten", delete(ROW), in_place(1, PRICE), "."),
    ),
    ("Delete", "DataReplacement"): (
        spec("a column of the fragment replaced", delete(ROW), replaces(PRICE, 0), "R"),
        spec("of another fragment", delete(ROW), replaces(PRICE, 1), "."),
    ),
    ("Overwrite", "Append"): (spec("rows added", overwrite(), append(), "."), Outside("strict", reason=STRICT)),
    ("Overwrite", "Delete"): (spec("rows deleted", overwrite(), delete(ROW), "."), Outside("strict", reason=STRICT)),
    ("Overwrite", "Overwrite"): (
        spec("no config", overwrite(), overwrite(), "R"),
        spec("they set a key", overwrite(), overwrite(k="1"), "R"),
        stock("both set a key", overwrite(k="1"), overwrite(k="2"), "X", names=("k",)),
    ),
    ("Overwrite", "UpdateConfig"): (
        spec("they set a key", overwrite(), config({"k": "1"}), "."),
        spec("they set schema metadata", overwrite(k="1"), schema_metadata({"k": "1"}), "."),
        stock("both set a key", overwrite(k="1"), config({"k": None}), "X", names=("k",)),
    ),
    ("CreateIndex", "Delete"): (
        spec("rows deleted", creates(INDEX), delete({3: [1]}), "."),
        spec("an indexed row deleted", creates(INDEX), delete(ROW), "."),
        spec("an indexed fragment removed", creates(INDEX), delete({}, (0,)), "."),
    ),
    ("CreateIndex", "CreateIndex"): (
        spec("other names", creates(INDEX), creates(index("b", number=2)), "."),
        stock("one name, one field", creates(INDEX), creates(index("price_idx", number=2)), "R", names=("index price_idx",)),
        stock("one name, two fields", creates(INDEX), creates(index("price_idx", (NOTE,), number=2)), "R"),
        stock("one name, by the table's methods", creates(INDEX), creates(index("price_idx", number=2)), "R"),
        stock(
            "both replace one index",
            creates(index("a", number=2), drops=(index("a"),)),
            creates(index("a", number=3), drops=(index("a"),)),
            "R",
        ),
        spec("both drop one index", creates(drops=(INDEX,)), creates(drops=(INDEX,)), "."),
        spec("each drops another", creates(drops=(INDEX,)), creates(drops=(index("b", number=2),)), "."),
        stock("we replace what they dropped", creates(index("a", number=2), drops=(index("a"),)), creates(drops=(index("a"),)), "R"),
        stock("we drop what they replaced", creates(drops=(index("a"),)), creates(index("a", number=2), drops=(index("a"),)), "R"),
        spec("one made, another dropped", creates(INDEX), creates(drops=(index("b", number=2),)), "."),
        stock("we extend what they dropped", creates(index("a", number=2)), creates(drops=(index("a"),)), "R", names=("index a",)),
        spec("both write the reuse entry", TRIM, TRIM, "B", merge_singletons=(FRAGMENT_REUSE,)),
        spec("both set up the log", MEM_WAL_CREATION, creates(log_index(generation=6)), "B", merge_singletons=(MEM_WAL,)),
        spec("an index after the log", creates(INDEX), MEM_WAL_CREATION, "."),
        spec("the log after an index", MEM_WAL_CREATION, creates(INDEX), "."),
    ),
    ("CreateIndex", "Rewrite"): (
        spec("a covered fragment", creates(INDEX), rewrite((0, 1)), "R", fragments=(0, 1), names=("index price_idx",)),
        spec("fragments not covered", creates(INDEX), rewrite((2, 3)), "."),
        stock("a covered fragment, stable row ids", creates(INDEX), rewrite((0, 1)), "R", stable=True),
        spec("remapping postponed", creates(INDEX), rewrite((0, 1), reuse=True), "."),
        spec("remapping postponed, part of a group", creates(INDEX), rewrite((1, 2), reuse=True), "."),
        spec("the log, which covers nothing by name", MEM_WAL_CREATION, rewrite((0, 1)), "R"),
        spec("an index dropped", creates(drops=(INDEX,)), rewrite((0, 1)), "."),
        stock("the reuse entry shortened", TRIM, rewrite((0, 1), reuse=True), "B", merge_singletons=(FRAGMENT_REUSE,)),
        stock("an n-gram index, remapping postponed", creates(index("g", (NOTE,), kind="NGram")), rewrite((0, 1), reuse=True), "R"),
    ),
    ("CreateIndex", "Merge"): (
        spec("a column added", creates(INDEX), merge(), "."),
        stock("the log", MEM_WAL_CREATION, merge(), "R"),
    ),
    ("CreateIndex", "Project"): (
        spec("a column renamed", creates(INDEX), project(), "."),
        own("the indexed column dropped", creates(INDEX), DROPS_PRICE, "X", names=("field 1",)),
        spec("another column dropped", creates(INDEX), DROPS_NOTE, "."),
    ),
    ("CreateIndex", "Update"): (
        spec("an indexed row moved", creates(INDEX), move(ROW), "."),
        stock("an indexed column rewritten", creates(INDEX), in_place(0, PRICE), "B", trim_indices=((INDEX.uuid, (0,)),), fragments=(0,)),
        spec("another column rewritten", creates(INDEX), in_place(0, NOTE), "."),
    ),
    ("CreateIndex", "DataReplacement"): (
        spec("an indexed column, covered", creates(INDEX), replaces(PRICE, 0), "R", fragments=(0,)),
        spec("an indexed column, not covered", creates(INDEX), replaces(PRICE, 3), "."),
        spec("another column", creates(INDEX), replaces(NOTE, 0), "."),
    ),
    ("CreateIndex", "UpdateMemWalState"): (
        spec("an index", creates(INDEX), log_state(5), "X"),
        spec("the log", MEM_WAL_CREATION, log_state(5), "X"),
    ),
    ("Rewrite", "Append"): (
        spec("rows added", rewrite((0, 1)), append(), "."),
        spec("rows added under a compaction", rewrite((0, 1), (2, 3)), append(), "."),
    ),
    ("Rewrite", "Delete"): (
        spec("a row of a fragment", rewrite((0, 1)), delete(ROW), "R", fragments=(0,)),
        spec("of another fragment", rewrite((0, 1)), delete({2: [1]}), "."),
        spec("a whole fragment", rewrite((0, 1)), delete({}, (0,)), "R"),
        spec("under a compaction", rewrite((0, 1)), delete({0: [1], 2: [1]}), "R", fragments=(0,)),
    ),
    ("Rewrite", "CreateIndex"): (
        spec("a covered fragment", rewrite((0, 1)), creates(INDEX), "R", fragments=(0, 1)),
        spec("fragments not covered", rewrite((2, 3)), creates(INDEX), "."),
        stock("a covered fragment, stable row ids", rewrite((0, 1)), creates(INDEX), "R", stable=True),
        spec("remapping postponed, group covered", rewrite((0, 1), reuse=True), creates(INDEX), "."),
        stock("remapping postponed, part of a group", rewrite((1, 2), reuse=True), creates(INDEX), "R", fragments=(1,)),
        spec("remapping postponed, nothing covered", rewrite((2, 3), reuse=True), creates(INDEX), "."),
        spec("an index dropped", rewrite((0, 1)), creates(drops=(INDEX,)), "."),
        spec("the log", rewrite((0, 1)), MEM_WAL_CREATION, "R"),
        spec("the log, remapping postponed", rewrite((0, 1), reuse=True), MEM_WAL_CREATION, "."),
        spec("the reuse entry shortened", rewrite((0, 1), reuse=True), TRIM, "B", merge_singletons=(FRAGMENT_REUSE,)),
    ),
    ("Rewrite", "Rewrite"): (
        spec("a fragment", rewrite((0, 1)), rewrite((1, 2)), "R", fragments=(1,)),
        spec("other fragments", rewrite((0, 1)), rewrite((2, 3)), "."),
        spec("other fragments, theirs postpones", rewrite((0, 1)), rewrite((2, 3), reuse=True), "."),
        spec("the same fragments", rewrite((0, 1)), rewrite((0, 1)), "R"),
        spec("both postpone, known from the manifest", rewrite((0, 1), reuse=True), rewrite((2, 3), reuse=True), "R"),
        spec("both postpone, known from a cache", rewrite((0, 1), reuse=True), rewrite((2, 3), reuse=True), "R"),
    ),
    ("Rewrite", "Update"): (
        spec("a row of a fragment", rewrite((0, 1)), move(ROW), "R", fragments=(0,)),
        spec("of another fragment", rewrite((0, 1)), move({2: [1]}), "."),
        spec("rows only inserted", rewrite((0, 1)), move({}), "."),
    ),
    ("Rewrite", "DataReplacement"): (
        spec("a column of a fragment", rewrite((0, 1)), replaces(PRICE, 1), "R"),
        spec("of another fragment", rewrite((0, 1)), replaces(PRICE, 2), "."),
    ),
    ("Merge", "Append"): (
        spec("rows added", merge(), append(), "R"),
        spec("no promise on nulls", merge(promises=False), append(), "R"),
        spec("nulls still taken", merge(), append(), "R"),
    ),
    ("Merge", "CreateIndex"): (
        stock("the log", merge(), MEM_WAL_CREATION, "R"),
        spec("an index", merge(), creates(INDEX), "."),
    ),
    ("Merge", "Merge"): (
        spec("the same column", merge(), merge(), "R"),
        spec("other columns", merge(), merge(*SCHEMA, ops.Field("more", 4, -1, "int32")), "R"),
        spec("other columns, by the table's methods", merge(), CAST, "R"),
    ),
    ("Merge", "UpdateConfig"): (
        spec("a config key", merge(), config({"k": "1"}), "."),
        spec("table metadata", merge(), table_metadata({"k": "1"}), "."),
        stock("schema metadata", merge(), schema_metadata({"k": "1"}), "R"),
        stock("field metadata", merge(), field_metadata(1, {"k": "1"}), "R", names=("metadata of field 1",)),
    ),
    ("Project", "Append"): (
        stock("no promise on nulls", project(promises=False), append(), "R"),
        spec("nulls still taken", project(), append(), "."),
        spec("a column dropped", DROPS_PRICE, append(), "."),
        spec("a column renamed", project(SCHEMA[0], SCHEMA[1], ops.Field("remark", NOTE, -1, "string")), append(), "."),
        stock("a column takes no nulls any more", TIGHTENS, append(), "R"),
    ),
    ("Project", "Delete"): (
        spec("rows deleted", DROPS_PRICE, delete(ROW), "."),
        spec("no promise on nulls", TIGHTENS, delete(ROW), "."),
    ),
    ("Project", "Project"): (
        spec("the same", DROPS_PRICE, DROPS_PRICE, "R"),
        spec("other columns", DROPS_PRICE, DROPS_NOTE, "R"),
        spec("other columns, by the table's methods", DROPS_NOTE, DROPS_PRICE, "R"),
    ),
    ("Project", "Update"): (
        spec("nulls still taken", DROPS_PRICE, move(ROW), "."),
        stock("no promise on nulls", TIGHTENS, move(ROW), "R"),
    ),
    ("Project", "UpdateConfig"): (
        spec("a config key", DROPS_PRICE, config({"k": "1"}), "."),
        own("schema metadata", DROPS_PRICE, schema_metadata({"k": "1"}), "R", names=("schema metadata",)),
        own("field metadata", DROPS_PRICE, field_metadata(0, {"k": "1"}), "R"),
    ),
    ("Project", "DataReplacement"): (spec("the dropped column was replaced", DROPS_PRICE, replaces(PRICE, 0), "."),),
    ("Restore", "Append"): (
        spec("rows added", Side(ops.Restore(1)), append(), "."),
        spec("by the table's methods", Side(ops.Restore(2)), append(), "."),
    ),
    ("Update", "Append"): (
        stock("a keyed merge, the key was added", inserts(1), append([1]), "R"),
        stock("a keyed merge, another key was added", inserts(1), append([2]), "R"),
        stock("a keyed merge that inserts nothing", carries(filter_of([])), append([2]), "R"),
    ),
    ("Update", "Delete"): (
        spec("other rows", move(ROW), delete(OTHER_ROW), "B", merge_fragments=(0,)),
        spec("the same row", move(ROW), delete(ROW), "R", rows=((0, 1),)),
        spec("one row of two the same", move({0: [1, 2]}), delete({0: [2, 3]}), "R"),
        spec("together the whole fragment", move({0: range(5)}), delete({0: range(5, 10)}), "B"),
        spec("we move every row of the fragment", move({}, (0,)), delete(ROW), "R"),
        spec("rows unknown", move(ROW, known=False), delete(OTHER_ROW, known=False), "B", undecided_fragments=(0,)),
        spec("other fragments, rows unknown", move(ROW, known=False), delete({1: [1]}, known=False), "."),
        stock("we rewrite a column of the fragment", in_place(0, PRICE), delete(ROW), "R"),
        spec("we rewrite a column of another", in_place(1, PRICE), delete(ROW), "."),
        spec("a keyed merge, another row deleted", inserts(1), delete(ROW), "."),
        spec("a keyed merge of the deleted row", move(ROW, keys=filter_of([])), delete(ROW), "R"),
    ),
    ("Update", "Rewrite"): (
        spec("a rewritten fragment", move(ROW), rewrite((0, 1)), "R"),
        spec("other fragments", move(ROW), rewrite((1, 2)), "."),
    ),
    ("Update", "Project"): (
        stock("no promise on nulls", move(ROW), TIGHTENS, "R"),
        spec("nulls still taken", move(ROW), DROPS_PRICE, "."),
        stock("the rewritten column dropped", in_place(0, PRICE), DROPS_PRICE, "R", names=("field 1",)),
        spec("another column dropped", in_place(0, PRICE), DROPS_NOTE, "."),
    ),
    ("Update", "Update"): (
        spec("other rows", move(ROW), move(OTHER_ROW), "B", merge_fragments=(0,), undecided_fragments=()),
        spec("the same row", move(ROW), move(ROW), "R", rows=((0, 1),)),
        spec("the same row, to be worked out again", move(ROW), move(ROW), "R"),
        spec("the same row, other columns", move(ROW), move(ROW, assigned=(NOTE,)), "R"),
        spec("other fragments", move(ROW), move({1: [1]}), "."),
        spec("other rows, stable row ids", move(ROW), move(OTHER_ROW), "B", stable=True),
        spec("the same row, stable row ids", move(ROW), move(ROW), "R", stable=True),
        stock("we rewrite a column, they moved a row", in_place(0, PRICE), move(ROW), "R"),
        stock("they rewrote a column", move(ROW), in_place(0, PRICE), "R"),
        stock("both rewrite one column", in_place(0, PRICE), in_place(0, PRICE), "R"),
        stock("both rewrite, other columns", in_place(0, PRICE), in_place(0, NOTE), "R"),
        spec("both rewrite, other fragments", in_place(0, PRICE), in_place(1, PRICE), "."),
        stock("both compact the log, ours is further", move({}, progress=progress(6)), move({}, progress=progress(5)), "."),
        own(
            "both compact the log, ours is behind",
            move({}, progress=progress(4)),
            move({}, progress=progress(5)),
            "X",
            names=(f"shard {SHARD}",),
        ),
        spec("no primary key, one key twice", move({}), move({}), "."),
        stock("the same new key", inserts(1), inserts(1), "R"),
        stock("the same new key, to be worked out again", inserts(1), inserts(1), "R"),
        stock("other new keys", inserts(1), inserts(2), "."),
        stock("forty keys each", inserts(*range(40)), inserts(*range(1000, 1040)), "."),
        stock("one key, insert only", inserts(7), inserts(7), "R"),
        stock("keyed, the same row", move(ROW, keys=filter_of([])), move(ROW, keys=filter_of([])), "R", rows=((0, 1),)),
        stock("keyed, other rows", move(ROW, keys=filter_of([])), move(OTHER_ROW, keys=filter_of([])), "B"),
        spec("no key, other rows", move(ROW), move(OTHER_ROW), "B"),
        spec("no key, the same row", move(ROW), move(ROW), "R"),
        stock("theirs has no filter", inserts(1), move(ROW), "R"),
        spec("ours has no filter, and leaves the key alone", move(ROW), inserts(1), "."),
        spec("we merge to delete only", move(ROW, new=False, assigned=()), inserts(1), "."),
        stock("we merge to update only", carries(filter_of([])), inserts(1), "."),
        stock("we merge to update only, theirs has no filter", carries(filter_of([])), move(ROW), "R"),
        stock("they merged to delete only", inserts(1), move(ROW, new=False), "R"),
        own("four hundred keys each, told apart", inserts(*range(400)), inserts(*range(10_000, 10_400)), "."),
        stock("filters of other fields", inserts(1), carries(filter_of([2], (NOTE,))), "R"),
        stock("a set of hashes beside a bloom filter", inserts(1), carries(ops.KeyExistenceFilter((KEY,), exact=(5,))), "R"),
        stock("theirs is empty", inserts(1), carries(bits(EMPTY)), "."),
        stock("theirs has our key", inserts(1), carries(bits(_bitmap_of(1))), "R"),
        own("one bit in common, which is no key", inserts(1), carries(bits(_one_bit_of(1))), "."),
        stock("theirs has every other bit", inserts(1), carries(bits(_all_but(1))), "."),
        stock("theirs has every bit", inserts(1), carries(bits(FULL)), "R"),
        stock("theirs has every bit, ours none", carries(bits(EMPTY)), carries(bits(FULL)), "."),
        stock("other numbers of items", inserts(1), carries(bits(_bitmap_of(2), 4096)), "R"),
        stock("other probabilities", inserts(1), carries(bits(_bitmap_of(2), probability=0.01)), "R"),
        stock("size unset", inserts(1), carries(bits(_bitmap_of(2), 0, 0.0)), "."),
        stock("another length", inserts(1), carries(bits(EMPTY[: PLAIN_BYTES // 2])), "R"),
        stock("a filter without anything", inserts(1), carries(ops.KeyExistenceFilter((KEY,))), "R"),
        stock("an update of nothing", inserts(1), Side(ops.Update()), "R"),
    ),
    ("Update", "DataReplacement"): (
        spec("a column of the fragment", move(ROW), replaces(PRICE, 0), "R"),
        spec("of another fragment", move(ROW), replaces(PRICE, 1), "."),
    ),
    ("Update", "UpdateMemWalState"): (
        spec("another shard", move({}, progress=progress(5)), log_state(9, OTHER_SHARD), "."),
        stock("theirs is behind", move({}, progress=progress(5)), log_state(4), "R"),
        stock("the same generation", move({}, progress=progress(5)), log_state(5), "X", names=(f"shard {SHARD}",)),
        stock("theirs is further", move({}, progress=progress(5)), log_state(6), "X"),
        spec("we compact nothing", move(ROW), log_state(5), "."),
    ),
    ("Append", "UpdateConfig"): (spec("another field", append(), field_metadata(PRICE, {"unit": "EUR"}), "."),),
    ("Update", "UpdateConfig"): (spec("another field", move(ROW), field_metadata(PRICE, {"unit": "EUR"}), "."),),
    ("DataReplacement", "UpdateConfig"): (spec("a key of another field", replaces(PRICE, 0), DECLARES_KEY, "."),),
    ("UpdateConfig", "Append"): (spec("another field", field_metadata(PRICE, {"unit": "EUR"}), append(), "."),),
    ("UpdateConfig", "Update"): (spec("another column rewritten", DECLARES_KEY, in_place(0, PRICE), "."),),
    ("UpdateConfig", "DataReplacement"): (spec("another column replaced", DECLARES_KEY, replaces(PRICE, 0), "."),),
    ("UpdateConfig", "Restore"): (spec("a config key", config({"a": "1"}), Side(ops.Restore(2)), "."),),
    ("UpdateConfig", "Overwrite"): (
        spec("other keys", config({"a": "1"}), overwrite(b="1"), "X"),
        spec("they set none", config({"a": "1"}), overwrite(), "X"),
        spec("the same key", config({"a": "1"}), overwrite(a="2"), "X"),
        spec("we remove theirs", config({"a": None}), overwrite(a="2"), "X"),
        spec("table metadata", table_metadata({"a": "1"}), overwrite(), "X"),
        spec("schema metadata", schema_metadata({"a": "1"}), overwrite(), "X"),
        spec("field metadata", field_metadata(0, {"a": "1"}), overwrite(), "X"),
    ),
    ("UpdateConfig", "Merge"): (
        stock("schema metadata", schema_metadata({"a": "1"}), merge(), "R"),
        spec("a config key", config({"a": "1"}), merge(), "."),
    ),
    ("UpdateConfig", "UpdateConfig"): (
        spec("one key", config({"a": "1"}), config({"a": "2"}), "X", names=("config a",)),
        spec("other keys", config({"a": "1"}), config({"b": "2"}), "."),
        spec("they removed what we set", config({"a": "1"}), config({"a": None}), "X"),
        spec("we remove what they set", config({"a": None}), config({"a": "1"}), "X"),
        spec("both remove one", config({"a": None}), config({"a": None}), "X"),
        spec("one key of table metadata", table_metadata({"a": "1"}), table_metadata({"a": "2"}), "X"),
        spec("other keys of table metadata", table_metadata({"a": "1"}), table_metadata({"b": "2"}), "."),
        spec("one key of schema metadata", schema_metadata({"a": "1"}), schema_metadata({"a": "2"}), "X"),
        spec("other keys of schema metadata", schema_metadata({"a": "1"}), schema_metadata({"b": "2"}), "."),
        spec("one name in config and table metadata", config({"a": "1"}), table_metadata({"a": "2"}), "."),
        spec("one name in config and schema metadata", config({"a": "1"}), schema_metadata({"a": "2"}), "."),
        spec("we replace the config", config({"a": "1"}, whole=True), config({"b": "2"}), "X", names=("config as a whole",)),
        spec("they replaced the config", config({"a": "1"}), config({"b": "2"}, whole=True), "X"),
        spec("we replace the table metadata", table_metadata({}, whole=True), table_metadata({"b": "2"}), "X"),
        spec("one field, other keys", field_metadata(1, {"a": "1"}), field_metadata(1, {"b": "1"}), "."),
        spec("other fields", field_metadata(1, {"a": "1"}), field_metadata(2, {"a": "1"}), "."),
    ),
    ("DataReplacement", "Delete"): (
        spec("a row of the fragment", replaces(PRICE, 0), delete(ROW), "."),
        stock("the fragment", replaces(PRICE, 0), delete({}, (0,)), "X", fragments=(0,)),
    ),
    ("DataReplacement", "CreateIndex"): (
        spec("our column, covered", replaces(PRICE, 0), creates(INDEX), "R", names=("index price_idx",)),
        spec("our column, not covered", replaces(PRICE, 3), creates(INDEX), "R"),
        spec("another column", replaces(NOTE, 0), creates(INDEX), "."),
    ),
    ("DataReplacement", "Rewrite"): (
        spec("the fragment", replaces(PRICE, 0), rewrite((0, 1)), "R"),
        spec("other fragments", replaces(PRICE, 2), rewrite((0, 1)), "."),
    ),
    ("DataReplacement", "Project"): (
        stock("our column dropped", replaces(PRICE, 0), DROPS_PRICE, "X", names=("field 1",)),
        stock("our column dropped, no promise on nulls", replaces(PRICE, 0), project(SCHEMA[0], promises=False), "R"),
        spec("another column dropped", replaces(PRICE, 0), DROPS_NOTE, "."),
    ),
    ("DataReplacement", "Update"): (
        spec("a row moved", replaces(PRICE, 0), move(ROW), "R", fragments=(0,)),
        spec("a row of another fragment moved", replaces(PRICE, 0), move({1: [1]}), "."),
        spec("every row moved", replaces(PRICE, 0), move({}, (0,)), "R"),
        spec("our column rewritten", replaces(PRICE, 0), in_place(0, PRICE), "R"),
        spec("another column rewritten", replaces(PRICE, 0), in_place(0, NOTE), "R"),
    ),
    ("DataReplacement", "DataReplacement"): (
        spec("one column of one fragment", replaces(PRICE, 0), replaces(PRICE, 0), "R", names=("field 1 of fragment 0",), fragments=(0,)),
        spec("another column", replaces(PRICE, 0), replaces(NOTE, 0), "."),
        spec("another fragment", replaces(PRICE, 0), replaces(PRICE, 1), "."),
    ),
    ("UpdateMemWalState", "CreateIndex"): (
        stock("the log, with our shard", log_state(5), MEM_WAL_CREATION, "X"),
        stock("an index", log_state(5), creates(INDEX), "."),
    ),
    ("UpdateMemWalState", "Update"): (
        stock("theirs is not behind", log_state(5), move({}, progress=progress(5)), "X"),
        stock("theirs is behind", log_state(5), move({}, progress=progress(4)), "R"),
        stock("they compacted nothing", log_state(5), move(ROW), "."),
    ),
    ("UpdateMemWalState", "UpdateMemWalState"): (
        stock("theirs is not behind", log_state(5), log_state(5), "X"),
        stock("theirs is behind", log_state(5), log_state(4), "R"),
        stock("another shard", log_state(5), log_state(5, OTHER_SHARD), "."),
    ),
    ("UpdateBases", "UpdateBases"): (
        spec("one path", base("s3://a", "x"), base("s3://a", "y"), "X", names=("s3://a",)),
        spec("one name", base("s3://a", "x"), base("s3://b", "x"), "X", names=("x",)),
        spec("one id", base("s3://a", "x", 3), base("s3://b", "y", 3), "X", names=("base 3",)),
        spec("nothing in common", base("s3://a", "x"), base("s3://b", "y"), "."),
        spec("both without a name", base("s3://a"), base("s3://b"), "."),
    ),
}

# ---- beyond the matrix -----------------------------------------------------------------------------------------------------

FURTHER: tuple[Case, ...] = (
    # A primary key that one side declares, and values the other side wrote without it.
    own("we add rows", append(), DECLARES_KEY, "R", names=("field 0",)),
    own("we add rows beside a position in the key", append(), field_metadata(PRICE, {PRIMARY_KEY_POSITION: "2"}), "R", names=("field 1",)),
    own("we add rows while all metadata of a field is replaced", append(), REPLACES_METADATA, "R", names=("field 0",)),
    own("we add no rows", Side(ops.Append()), DECLARES_KEY, "."),
    own("we move rows", move(ROW), DECLARES_KEY, "R"),
    own("we rewrite the key", in_place(0, 0), DECLARES_KEY, "R"),
    own("we rewrite columns and do not tell which", in_place(0, PRICE, unnamed=True), DECLARES_KEY, "R"),
    own("we only delete, as an update", Side(ops.Update((), (fragment(0, 1),))), DECLARES_KEY, "."),
    own("we replace the key", replaces(0, 0), DECLARES_KEY, "R"),
    own("we replace all rows", overwrite(), DECLARES_KEY, "R"),
    own("they added rows", DECLARES_KEY, append(), "R"),
    own("they moved rows", DECLARES_KEY, move(ROW), "R"),
    own("they replaced the key", DECLARES_KEY, replaces(0, 0), "R"),
    own("they set the table back", DECLARES_KEY, Side(ops.Restore(2)), "R"),
    # A rewrite and deletions, both orders, where it is certain where the rows are.
    own("deletions follow a rewrite", delete(ROW, (1,)), rewrite((0, 1)), "B", stable=True, carry_fragments=(0, 1)),
    replace(
        own("deletions follow a rewrite that kept the order", delete(ROW), rewrite((0, 1)), "B", carry_fragments=(0,)), row_map_certain=True
    ),
    own("a moved row follows a rewrite", move(ROW), rewrite((0, 1)), "B", stable=True, carry_fragments=(0,)),
    own("a rewrite takes deletions along", rewrite((0, 1)), delete(ROW, (1,)), "B", stable=True, carry_fragments=(0, 1)),
    own("a rewrite takes moved rows along", rewrite((0, 1)), move(ROW), "B", stable=True, carry_fragments=(0,)),
    own("a rewrite leaves other fragments alone", rewrite((0, 1)), move({2: [1]}), ".", stable=True),
    own("new values of a column follow nowhere", in_place(0, PRICE), rewrite((0, 1)), "R", stable=True),
    own("a rewrite of old values", rewrite((0, 1)), in_place(0, PRICE), "R", stable=True),
    own("a rewrite of old values nobody tells of", rewrite((0, 1)), in_place(0, PRICE, silent=True), "R", stable=True),
    # Columns rewritten in place, with the rows told.
    own("we rewrite other rows than they moved", in_place(0, PRICE, [5]), move(ROW), "B", merge_fragments=(0,), undecided_fragments=()),
    own("we rewrite the row they moved", in_place(0, PRICE, [1]), move(ROW), "R", rows=((0, 1),)),
    own("we rewrite other rows than they deleted", in_place(0, PRICE, [5]), delete(ROW), "B", merge_fragments=(0,)),
    own("we delete other rows than they rewrote", delete(ROW), in_place(0, PRICE, [5]), "B", merge_fragments=(0,)),
    own("we delete the row they rewrote", delete(ROW), in_place(0, PRICE, [1]), "R", rows=((0, 1),)),
    own("both rewrite, other rows", in_place(0, PRICE, [1]), in_place(0, PRICE, [2]), "R", fragments=(0,)),
    own("they rewrote and did not say so", delete(ROW), in_place(0, PRICE, silent=True), "R", fragments=(0,)),
    own("we rewrote and do not say so", in_place(0, PRICE, silent=True), delete(ROW), "R", fragments=(0,)),
    own("we rewrite one row and move another that they deleted", replace(in_place(0, PRICE, [5]), rows={0: BitMap([1])}), delete(ROW), "R"),
    own("rewritten columns told by their fields alone", FIELDS_ALONE, delete(ROW), "R", fragments=(0,)),
    own("rewritten rows against rows nobody knows", in_place(0, PRICE, [5]), delete(ROW, known=False), "B", undecided_fragments=(0,)),
    # Rows of several fragments, of which some are known.
    own(
        "one fragment known, one not",
        delete({0: [1], 1: [1]}),
        Side(delete({0: [2], 1: [2]}).operation, {0: BitMap([2])}),
        "B",
        undecided_fragments=(1,),
    ),
    own(
        "one known and the same", delete({0: [1], 1: [1]}), Side(delete({0: [1], 1: [2]}).operation, {0: BitMap([1])}), "R", rows=((0, 1),)
    ),
    # Whole fragments and schemas, in the pairs the matrix has no row for.
    own("we delete from a fragment they moved away", delete(ROW), move({}, (0,)), "R", fragments=(0,)),
    own("we move from a fragment they moved away", move(ROW), move({}, (0,)), "R", fragments=(0,)),
    own("a column takes no nulls any more, another was replaced", TIGHTENS, replaces(PRICE, 0), "R"),
    # Keys.
    own("an append of other keys", append([2]), inserts(1), "."),
    own("an append of the key", append([1]), inserts(1), "R", names=("both may have inserted one key",)),
    own("an append of nothing", Side(ops.Append()), inserts(1), "."),
    own("an append after a merge that only updated", append(), carries(filter_of([])), "."),
    own("an append after a merge without new rows", append(), move(ROW, keys=filter_of([1]), new=False), "."),
    replace(own("an append of other keys, of a type nobody knows", append([2]), inserts(1), "R"), key_types=()),
    own("an update of the key itself", move({1: [1]}, assigned=(KEY,)), inserts(1), "R", names=("field 0",)),
    own("an update of nobody knows what", move({1: [1]}, assigned=()), inserts(1), "R", names=("field 0",)),
    own("the key rewritten in place", in_place(1, KEY), inserts(1), "R", names=("field 0",)),
    own("a merge after one that left it open", inserts(2), inserts(1), "."),
    # Indices.
    own("the log set up in two ways", MEM_WAL_CREATION, creates(log_index(maintained=("price_idx",))), "R", names=(f"index {MEM_WAL}",)),
    own("we drop what they extended", creates(drops=(index("a"),)), creates(index("a", number=2)), "R", names=("index a",)),
    own("the reuse entry dropped under a rewrite", creates(drops=(REUSE,)), rewrite((0, 1), reuse=True), "X"),
    own("a rewrite after the reuse entry was dropped", rewrite((0, 1)), creates(drops=(REUSE,)), "X"),
    own("shortened together with something else", creates(REUSE, INDEX, drops=(REUSE,)), rewrite((0, 1)), "X"),
    own("shortened, and a rewrite without an entry", TRIM, rewrite((10, 11)), "."),
    own("a rewrite without an entry after it was shortened", rewrite((10, 11)), TRIM, "."),
    own("a dropped index that was mapped", creates(drops=(INDEX,)), MAPS_INDEX, "B", names=("index price_idx",)),
    own("an index dropped, another one mapped", creates(drops=(index("b", number=2),)), MAPS_INDEX, "."),
    own("an index of unknown coverage", creates(index("dark", covers=None)), rewrite((0, 1)), "R"),
    own("an index of unknown coverage, remapping postponed", rewrite((0, 1), reuse=True), creates(index("dark", covers=None)), "R"),
    own("an n-gram index elsewhere", creates(index("g", (NOTE,), (3,), kind="NGram")), rewrite((0, 1), reuse=True), "."),
    own("an index in no way typed", creates(replace(INDEX, details=None)), rewrite((0, 1), reuse=True), "."),
    own("a rewritten column under unknown coverage", creates(index("dark", covers=None)), in_place(0, PRICE), "R", fragments=(0,)),
    own("a rewritten column, not covered", creates(INDEX), in_place(3, PRICE), "."),
    own("a column rewritten, nobody says which", creates(INDEX, log_index()), in_place(0, PRICE, unnamed=True), "B", fragments=(0,)),
    own("a column carried along", creates(replace(INDEX, covering_fields=(NOTE,))), in_place(1, NOTE), "B", fragments=(1,)),
    own("an index without coverage over a replaced column", creates(index("dark", covers=None)), replaces(PRICE, 0), "R"),
    own("an indexed column cast", creates(INDEX), CAST, "R", names=("field 1",)),
    # Schema, settings, the log, bases.
    own("an appended column cast", append(), CAST, "R", names=("field 1",)),
    own("a rewritten column nobody names, dropped", in_place(0, PRICE, unnamed=True), DROPS_PRICE, "R"),
    own("a map that is not changed at all", config({}), config({"a": "1"}), "."),
    own("the log behind ours", log_state(6), MEM_WAL_CREATION, "R"),
    own("the log with another shard", log_state(5), creates(log_index(OTHER_SHARD)), "."),
    own("a shard named twice", log_state(6), Side(ops.UpdateMemWalState((*progress(7), *progress(5)))), "X"),
    own("ids that are not set", base("s3://a", "x", 0), base("s3://b", "y", 0), "."),
)
