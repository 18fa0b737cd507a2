"""Operations and transactions as values: round trips, older wire forms, operations of the future, bad input."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from tests.support.proving import pick
from tiltyard.errors import CorruptTable, InvalidInput
from tiltyard.format import lance_pb2 as pb
from tiltyard.format.codec import integer, length_delimited, varint
from tiltyard.format.values import BasePath, DataFile, DataFragment, DeletionFile, Field, IndexFile, IndexMetadata
from tiltyard.transaction import operations as ops
from tiltyard.transaction.transaction import MAX_TRANSACTION_BYTES, Transaction

UUID = "0b5a8a2c-4d1e-4c8e-9d7e-1a2b3c4d5e6f"
OPERATIONS: tuple[type, ...] = get_args(ops.Operation)

# ---- any value -------------------------------------------------------------------------------------------------------------

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
field_ids = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
blobs = st.binary(max_size=12)
unknowns = st.sampled_from([b"", integer(900, 0), length_delimited(901, b"later") + integer(900, 7)])
uuids = st.uuids().map(str)
paths = st.from_regex(r"[a-z0-9]{1,6}(/[a-z0-9]{1,6})?\.lance", fullmatch=True)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=2).map(tuple)


def maybe(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | of


def mappings(keys: st.SearchStrategy[Any], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any]]:
    return st.dictionaries(keys, values, max_size=2)


@st.composite
def data_files(draw: st.DrawFn) -> DataFile:
    ids = draw(tuples(field_ids))
    columns = draw(st.sampled_from([(), tuple(range(len(ids)))]))
    return DataFile(draw(paths), ids, columns, draw(u32), draw(u32), draw(u64), draw(maybe(u32)), draw(unknowns))


@st.composite
def fragments(draw: st.DrawFn) -> DataFragment:
    rows = draw(u32)
    deletion = st.builds(DeletionFile, st.booleans(), u64, u64, deleted_rows=st.integers(0, rows), base_id=maybe(u32), unknown=unknowns)
    spilled = draw(st.booleans())
    sequence = st.none() if spilled else maybe(blobs)
    overlay = pb.DataOverlayFile(shared_offset_bitmap=b"x", committed_version=3).SerializeToString()
    return DataFragment(
        id=draw(u32),
        files=draw(tuples(data_files())),
        physical_rows=rows,
        deletion_file=draw(maybe(deletion)),
        row_ids=draw(sequence),
        updated_at=draw(sequence),
        created_at=draw(sequence),
        row_ids_spilled=spilled,
        updated_at_spilled=spilled,
        created_at_spilled=spilled,
        overlays=draw(st.sampled_from([(), (overlay,)])),
        unknown=draw(unknowns),
    )


fields = st.builds(
    Field,
    texts,
    field_ids,
    field_ids,
    st.sampled_from(["int64", "string", "list"]),
    st.booleans(),
    metadata=mappings(texts, blobs),
    encoding=st.integers(0, 4),
    dictionary=maybe(st.tuples(st.integers(0, 9), st.integers(0, 9))),
    primary_key=st.booleans(),
    primary_key_position=u32,
    unknown=unknowns,
)
index_files = st.builds(IndexFile, paths, u64, unknowns)
details = maybe(st.tuples(texts, blobs))
indices = st.builds(
    IndexMetadata,
    uuids,
    tuples(field_ids),
    texts,
    u64,
    fragment_bitmap=maybe(st.binary(min_size=1, max_size=9)),
    details=details,
    index_version=maybe(st.integers(0, 9)),
    created_at=maybe(u64),
    base_id=maybe(u32),
    files=tuples(index_files),
    covering_fields=tuples(field_ids),
    unknown=unknowns,
)
bases = st.builds(BasePath, u32, texts, st.booleans(), maybe(texts), unknowns)
blooms = st.builds(ops.BloomFilter, blobs, u32, u64, st.floats(allow_nan=False), unknowns)
key_filters = st.one_of(
    st.builds(ops.KeyExistenceFilter, tuples(field_ids), exact=maybe(tuples(u64)), unknown=unknowns),
    st.builds(ops.KeyExistenceFilter, tuples(field_ids), bloom=blooms, unknown=unknowns),
)
update_maps = st.builds(ops.UpdateMap, tuples(st.tuples(texts, maybe(texts))), st.booleans(), unknowns)
sstables = st.builds(ops.CompactedSsTable, uuids, u64, unknowns)
groups = st.builds(ops.RewriteGroup, tuples(fragments()), tuples(fragments()), unknowns)
rewritten = st.builds(ops.RewrittenIndex, uuids, uuids, details, u32, tuples(index_files), unknowns)
replacements = st.builds(ops.Replacement, u32, data_files(), unknowns)

BUILDERS: dict[type, st.SearchStrategy[Any]] = {
    ops.Append: st.builds(ops.Append, tuples(fragments()), unknowns),
    ops.Delete: st.builds(ops.Delete, tuples(fragments()), tuples(u32), texts, unknowns),
    ops.Overwrite: st.builds(
        ops.Overwrite, tuples(fragments()), tuples(fields), mappings(texts, blobs), mappings(texts, texts), tuples(bases), unknowns
    ),
    ops.CreateIndex: st.builds(ops.CreateIndex, tuples(indices), tuples(indices), unknowns),
    ops.Rewrite: st.builds(ops.Rewrite, tuples(groups), tuples(rewritten), unknowns),
    ops.Merge: st.builds(ops.Merge, tuples(fragments()), tuples(fields), mappings(texts, blobs), st.booleans(), unknowns),
    ops.Project: st.builds(ops.Project, tuples(fields), st.booleans(), unknowns),
    ops.Restore: st.builds(ops.Restore, u64, unknowns),
    ops.ReserveFragments: st.builds(ops.ReserveFragments, u32, unknowns),
    ops.Clone: st.builds(ops.Clone, st.booleans(), maybe(texts), u64, texts, maybe(texts), unknowns),
    ops.Update: st.builds(
        ops.Update,
        tuples(u32),
        tuples(fragments()),
        tuples(fragments()),
        tuples(u32),
        tuples(sstables),
        tuples(u32),
        st.sampled_from(ops.UpdateMode),
        maybe(key_filters),
        mappings(u32, blobs),
        unknowns,
    ),
    ops.UpdateConfig: st.builds(
        ops.UpdateConfig, maybe(update_maps), maybe(update_maps), maybe(update_maps), mappings(field_ids, update_maps), unknowns
    ),
    ops.DataReplacement: st.builds(ops.DataReplacement, tuples(replacements), unknowns),
    ops.UpdateMemWalState: st.builds(ops.UpdateMemWalState, tuples(sstables), unknowns),
    ops.UpdateBases: st.builds(ops.UpdateBases, tuples(bases), unknowns),
    ops.UnknownOperation: st.builds(lambda arm, body: ops.UnknownOperation(arm, length_delimited(arm, body)), st.integers(116, 999), blobs)
    | st.just(ops.UnknownOperation()),
}
transaction_unknowns = st.sampled_from([b"", length_delimited(50, b"later")])


def test_every_operation_is_round_tripped_below() -> None:
    assert set(BUILDERS) == set(OPERATIONS)
    assert len(OPERATIONS) == 16


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
@settings(max_examples=pick(20, 200), deadline=None, derandomize=True)
@given(data=st.data())
def test_a_transaction_survives_the_wire(kind: type, data: st.DataObject) -> None:
    mine = Transaction(
        data.draw(u64),
        data.draw(uuids),
        data.draw(BUILDERS[kind]),
        data.draw(mappings(texts, texts)),
        data.draw(texts),
        data.draw(transaction_unknowns),
    )
    wire = mine.to_bytes()
    read = Transaction.from_bytes(wire)
    assert read == mine
    assert type(read.operation) is kind
    assert read.to_bytes() == wire


@pytest.mark.parametrize("kind", OPERATIONS[:-1], ids=lambda kind: kind.__name__)
def test_an_operation_is_named_and_cannot_change(kind: type) -> None:
    assert kind.name == kind.__name__  # type: ignore[attr-defined]
    required = {"version": 3, "num_fragments": 2, "is_shallow": True, "ref_name": None, "ref_version": 1, "ref_path": "/x"}
    own = {member.name for member in dataclasses.fields(kind)}
    value = kind(**{name: value for name, value in required.items() if name in own})
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.unknown = b"x"
    assert not hasattr(value, "__dict__")


def test_what_is_given_is_copied() -> None:
    keys, config, entries = [7], {"a": "1"}, [["k", None]]
    delete, overwrite = ops.Delete(deleted_fragment_ids=keys), ops.Overwrite(config_upsert_values=config)  # type: ignore[arg-type]
    update, exact = ops.UpdateMap(entries), ops.KeyExistenceFilter(exact=keys)  # type: ignore[arg-type]
    transaction = Transaction(1, UUID, delete, config)
    keys.append(8)
    config["b"] = "2"
    entries[0][0] = "other"
    assert delete.deleted_fragment_ids == exact.exact == (7,)
    assert overwrite.config_upsert_values == transaction.properties == {"a": "1"}
    assert update.entries == (("k", None),)
    with pytest.raises(TypeError):
        overwrite.config_upsert_values["c"] = "3"  # type: ignore[index]


def test_equal_transactions_give_equal_bytes_whatever_the_order_of_their_maps() -> None:
    one = Transaction(1, UUID, ops.Overwrite(config_upsert_values={"a": "1", "b": "2"}), {"x": "1", "y": "2"})
    two = Transaction(1, UUID, ops.Overwrite(config_upsert_values={"b": "2", "a": "1"}), {"y": "2", "x": "1"})
    assert one == two
    assert one.to_bytes() == two.to_bytes()


def test_message_and_file_name() -> None:
    transaction = Transaction(41, UUID, ops.Restore(3), {"__lance_commit_message": "back to Monday"})
    assert transaction.message == "back to Monday"
    assert transaction.file_name == f"41-{UUID}.txn"
    assert Transaction(41, UUID, ops.Restore(3)).message == ""


# ---- older wire forms ------------------------------------------------------------------------------------------------------


def _read(**arm: Any) -> ops.Operation:
    return Transaction.from_bytes(pb.Transaction(read_version=1, uuid=UUID, **arm).SerializeToString(), "1-x.txn").operation


def test_a_rewrite_without_groups_is_one_group() -> None:
    old, new = pb.DataFragment(id=1, physical_rows=5), pb.DataFragment(id=2, physical_rows=4)
    group = ops.RewriteGroup((DataFragment(1, (), 5),), (DataFragment(2, (), 4),))
    assert _read(rewrite=pb.Transaction.Rewrite(old_fragments=[old], new_fragments=[new])) == ops.Rewrite((group,))
    both = pb.Transaction.Rewrite(
        old_fragments=[new], groups=[pb.Transaction.Rewrite.RewriteGroup(old_fragments=[old], new_fragments=[new])]
    )
    assert _read(rewrite=both) == ops.Rewrite((group,))


def test_old_config_maps_become_updates() -> None:
    message = pb.Transaction.UpdateConfig(upsert_values={"b": "2", "a": "1"}, delete_keys=["c"], schema_metadata={"s": "x"})
    message.field_metadata[4].metadata["f"] = "y"
    assert _read(update_config=message) == ops.UpdateConfig(
        config_updates=ops.UpdateMap((("a", "1"), ("b", "2"), ("c", None))),
        schema_metadata_updates=ops.UpdateMap((("s", "x"),), replace=True),
        field_metadata_updates={4: ops.UpdateMap((("f", "y"),), replace=True)},
    )
    only = _read(update_config=pb.Transaction.UpdateConfig(schema_metadata={"s": "x"}))
    assert only == ops.UpdateConfig(schema_metadata_updates=ops.UpdateMap((("s", "x"),), replace=True))


def test_old_and_new_config_maps_do_not_mix() -> None:
    message = pb.Transaction.UpdateConfig(delete_keys=["c"], config_updates=pb.UpdateMap())
    with pytest.raises(CorruptTable, match="mixes"):
        _read(update_config=message)
    wide = pb.Transaction.UpdateConfig()
    wide.field_metadata[2**31].metadata["f"] = "y"
    with pytest.raises(CorruptTable, match="field id 2147483648"):
        _read(update_config=wide)


def test_listed_offsets_become_bitmaps() -> None:
    message = pb.Transaction.Update()
    message.updated_fragment_offsets[3].values.extend([9, 1, 1])
    message.updated_fragment_offsets[4].SetInParent()
    read = _read(update=message)
    assert isinstance(read, ops.Update)
    assert {id: list(BitMap.deserialize(bitmap)) for id, bitmap in read.updated_fragment_offsets.items()} == {3: [1, 9]}
    message.updated_fragment_offset_bitmaps[5] = b"as is"
    read = _read(update=message)
    assert isinstance(read, ops.Update)
    assert read.updated_fragment_offsets == {5: b"as is"}


# ---- operations of the future ----------------------------------------------------------------------------------------------

HEAD = pb.Transaction(read_version=1, uuid=UUID, transaction_properties={"a": "b"}).SerializeToString()
LATER = length_delimited(900, b"later")


def _config(maps: bytes) -> bytes:
    return length_delimited(110, maps)


UNREADABLE = {
    "an overlay": (115, length_delimited(115, length_delimited(1, integer(1, 4)))),
    "a new arm": (116, length_delimited(116, b"\xff\xfe")),
    "a new arm that is no message": (117, integer(117, 3)),
    "a new arm in group form": (118, b"\xb3\x07" + integer(1, 3) + b"\x0b\x0c" + b"\xb4\x07"),
    "new arms of fixed width": (121, varint(120 << 3 | 1) + bytes(8) + varint(121 << 3 | 5) + bytes(4)),
    "one we know beside one we do not": (116, length_delimited(100, b"") + length_delimited(116, b"")),
    "one we do not know before one we know": (116, length_delimited(116, b"") + length_delimited(106, integer(1, 2))),
    "an update mode of the future": (108, length_delimited(108, integer(7, 2))),
    "a key filter with more to its set": (108, length_delimited(108, length_delimited(8, length_delimited(2, LATER)))),
    "a map entry with more to it": (110, _config(length_delimited(6, length_delimited(1, length_delimited(1, b"k") + LATER)))),
    "a field's map entry with more to it": (
        110,
        _config(length_delimited(9, integer(1, 2) + length_delimited(2, length_delimited(1, LATER)))),
    ),
    "old field metadata with more to it": (110, _config(length_delimited(4, integer(1, 2) + length_delimited(2, LATER)))),
    "nothing": (None, b""),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_said_in_full_is_kept_byte_for_byte(case: str) -> None:
    arm, wire = UNREADABLE[case]
    own = length_delimited(50, b"of the transaction")
    read = Transaction.from_bytes(HEAD + own + wire)
    assert read.operation == ops.UnknownOperation(arm, wire)
    assert read.operation.name == ("no operation" if arm is None else f"unknown operation {arm}")
    assert (read.unknown, read.properties) == (own, {"a": "b"})
    assert read.to_bytes() == HEAD + wire + own


# ---- bad input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"\xff" * 20, "cannot be decoded"),
        (HEAD[:-1], "cannot be decoded"),
        (b"", "cannot be a transaction id"),
        (pb.Transaction(uuid="../../x", restore=pb.Transaction.Restore()).SerializeToString(), "cannot be a transaction id"),
        (pb.Transaction(uuid="..", restore=pb.Transaction.Restore()).SerializeToString(), "cannot be a transaction id"),
        (pb.Transaction(uuid="a" * 101, restore=pb.Transaction.Restore()).SerializeToString(), "cannot be a transaction id"),
        (pb.Transaction(uuid="a\n", restore=pb.Transaction.Restore()).SerializeToString(), "cannot be a transaction id"),
        (HEAD + length_delimited(101, integer(2, 2**32)), "fragment id 4294967296"),
        (HEAD + length_delimited(108, integer(1, 2**40)), "fragment id 1099511627776"),
        (HEAD + length_delimited(108, length_delimited(10, integer(1, 2**32) + length_delimited(2, b"x"))), "fragment id 4294967296"),
        (HEAD + length_delimited(111, length_delimited(1, integer(1, 2**32))), "fragment id 4294967296"),
        (HEAD + length_delimited(111, length_delimited(1, length_delimited(2, length_delimited(1, b"../x")))), "'../x'"),
        (HEAD + length_delimited(112, length_delimited(1, integer(2, 1))), "uuid has 0 bytes"),
        (HEAD + length_delimited(104, length_delimited(4, integer(4, 1))), "uuid has 0 bytes"),
    ],
)
def test_bytes_nobody_may_act_upon_are_corrupt(wire: bytes, reason: str) -> None:
    with pytest.raises(CorruptTable, match=reason) as caught:
        Transaction.from_bytes(wire, "_transactions/7-x.txn")
    assert caught.value.file == "_transactions/7-x.txn"


def test_too_many_bytes_are_not_even_looked_at() -> None:
    with pytest.raises(CorruptTable, match="more than a transaction may have"):
        Transaction.from_bytes(bytes(MAX_TRANSACTION_BYTES + 1))


def test_values_the_wire_cannot_hold_are_refused() -> None:
    for uuid in ("", "a/b", "..", "x\x00"):
        with pytest.raises(InvalidInput, match="transaction id"):
            Transaction(1, uuid, ops.Restore(1))
    for operation in (ops.Restore(-1), ops.ReserveFragments(2**32), ops.Delete(predicate="\ud800"), ops.Delete(predicate=5)):  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match=f"The {operation.name} cannot be written"):
            Transaction(1, UUID, operation).to_bytes()
    with pytest.raises(InvalidInput, match="not both"):
        ops.KeyExistenceFilter((0,), exact=(), bloom=ops.BloomFilter(b"", 0, 0, 0.0))
