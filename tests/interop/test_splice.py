"""An append extends the bytes of the manifest before it. The result is what encoding it from scratch gives, to the last byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiltyard as ty
from tests.support.proving import pick
from tests.support.samples import table_of
from tests.support.tables import Chronicle, manifest_path, open_stock
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={"k": "é"}), pa.field("s", pa.string())], metadata={"m": "n"})

appends = st.fixed_dictionaries(
    {
        "rows": st.integers(0, 9),
        "per_file": st.integers(1, 4),
        "message": st.none() | st.text(st.characters(codec="utf-8"), max_size=20),
        "reopen": st.booleans(),
        "stream": st.booleans(),
    }
)


def from_scratch(uri: str, version: int) -> bytes:
    path = manifest_path(uri, version)
    file = decode_manifest_file(path.read_bytes(), source=path.name, version=version)
    return encode_manifest_file(file.manifest, file.transaction)[0]


@settings(max_examples=pick(12, 25), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    stable=st.booleans(),
    naming=st.sampled_from(["v1", "v2"]),
    keyed=st.booleans(),
    config=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), st.text(max_size=5), max_size=2),
    first=st.integers(0, 5),
    steps=st.lists(appends, min_size=1, max_size=8),
)
def test_a_spliced_manifest_is_the_one_encoded_from_scratch(
    stable: bool, naming: str, keyed: bool, config: dict[str, str], first: int, steps: list[dict[str, object]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = f"{directory}/t"
        table = ty.Table.create(
            uri,
            table_of(SCHEMA, first),
            stable_row_ids=stable,
            primary_key=["id"] if keyed else None,
            durability="os",
            options=ty.TableOptions(manifest_naming="v1" if naming == "v1" else "v2", config=config),
        )
        expected = first
        for number, step in enumerate(steps):
            table = ty.Table.open(uri, durability="os") if step["reopen"] else table
            before = table._file.message.body
            rows = table_of(SCHEMA, int(str(step["rows"])), 100 * (number + 1))
            message = step["message"]
            result = table.append(
                rows.to_reader() if step["stream"] else rows,
                message=None if message is None else str(message),
                files=ty.FileLimits(rows=int(str(step["per_file"]))),
            )
            expected += rows.num_rows
            data = manifest_path(uri, result.version).read_bytes()
            assert before in data
            assert data == from_scratch(uri, result.version)
            assert table.count_rows() == expected
        chronicle = Chronicle(uri)
        assert chronicle.agrees().count_rows() == expected
        assert open_stock(uri).count_rows() == expected
        chronicle.sound()


def test_a_manifest_without_the_fragments_of_an_older_one_does_not_spoil_it(tmp_path: Path) -> None:
    """Newest first, as the history is read: the younger manifest is a beginning of the older one, which it did not grow from."""
    uri = str(tmp_path / "t")
    table = ty.Table.create(uri, table_of(SCHEMA, 5), durability="os")
    table.append(table_of(SCHEMA, 5))
    table.overwrite(SCHEMA)
    assert [entry.rows for entry in ty.Table.open(uri).history()] == [0, 10, 5]
    table.append(table_of(SCHEMA, 1))
    open_stock(uri, 2).restore()
    assert [entry.rows for entry in ty.Table.open(uri).history()] == [10, 1, 0, 10, 5]
    Chronicle(uri).sound()


def test_after_any_commit_of_pylance_the_next_append_splices_its_bytes(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    ty.Table.create(uri, table_of(SCHEMA, 9), durability="os")
    open_stock(uri).create_scalar_index("id", "BTREE")
    for number in range(3):
        table = ty.Table.open(uri, durability="os")
        body = table._file.message.body
        version = table.append(table_of(SCHEMA, 2, 10 * number)).version
        assert body in manifest_path(uri, version).read_bytes()
    assert open_stock(uri).stats.index_stats("id_idx")["num_unindexed_rows"] == 6
    Chronicle(uri).sound()
