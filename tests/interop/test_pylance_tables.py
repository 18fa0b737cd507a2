"""Every kind of table stock pylance makes: we open every version, append, overwrite; pylance goes on from there.

What we refuse of tables that pylance reads, and how (each is asserted below):

| what | what we do |
|---|---|
| files in bases nobody allowed: shallow clones, several bases | ``CorruptTable``, naming the base; opens with ``allowed_bases`` |
| data files of the legacy format 0.1, which cannot tell null from zero | read; writing is ``UnsupportedFeature`` |
| feature bit 1024, tagged fragment reuse | read; writing is ``UnsupportedFeature`` |
| feature bit 16384, managed blobs | read; writing is ``UnsupportedFeature`` |
| V1 and V2 names in one directory | ``CorruptTable`` with advice; pylance refuses too |
| a primary key whose columns an overwrite lacks | ``InvalidInput``; ``primary_key=[]`` gives it up |

Bits 64, 512, 4096, 8192 and all unknown ones are refused by pylance and by us alike, for reading and writing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.samples import table_of
from tests.support.stock_tables import KINDS, ROWS, Made, write
from tests.support.tables import Chronicle, manifest_path, open_stock, sorted_rows
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file

NEW_SCHEMA: Final = pa.schema([pa.field("id", pa.int64()), pa.field("other", pa.string())], metadata={"k": "v"})


@pytest.fixture(params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    return KINDS[request.param](tmp_path / "t")


def chronicle_of(made: Made) -> Chronicle:
    return Chronicle(made.uri, made.branch, made.allowed_bases)


def open_ours(made: Made, **where: Any) -> ty.Table:
    return ty.Table.open(made.uri, allowed_bases=made.allowed_bases, durability="os", **where)


def test_we_read_every_version_and_tell_its_history(made: Made) -> None:
    chronicle = chronicle_of(made)
    table = chronicle.agrees()
    chronicle.sound()
    history = list(reversed(table.history()))
    assert [entry.operation for entry in history] == list(made.operations)
    assert [entry.version for entry in history] == table.layout.versions() == sorted(chronicle.seen)
    assert {entry.writer for entry in history} == {f"lance {lance.__version__}"}
    assert len({entry.transaction_id for entry in history}) == len(history)
    assert [entry.rows for entry in history] == [rows.num_rows for rows in chronicle.seen.values()]
    stock = {entry["version"]: entry["timestamp"].timestamp() for entry in open_stock(chronicle.place).versions()}
    for entry in history:
        assert entry.timestamp.timestamp() == pytest.approx(stock[entry.version], abs=2e-6)
        assert open_ours(made, branch=made.branch, timestamp=entry.timestamp).version == entry.version


def test_we_find_every_tag_and_branch(made: Made) -> None:
    stock, ours = open_stock(made.uri), open_ours(made)
    tags = stock.tags.list()
    assert dict(ours.tags).keys() == tags.keys()
    for name, tag in tags.items():
        table = open_ours(made, version=name)
        assert (table.version, table.branch) == (tag["version"], tag["branch"])
        assert table.to_arrow().equals(lance.dataset(made.uri).checkout_version(name).to_table())
    branches = stock.branches.list()
    assert dict(ours.branches).keys() == branches.keys()
    for name, branch in branches.items():
        assert open_ours(made).branches[name].parent_version == branch["parent_version"]
        assert open_ours(made, branch=name).to_arrow().equals(open_stock(f"{made.uri}/tree/{name}").to_table())


def test_we_append_and_overwrite_and_pylance_goes_on(made: Made) -> None:
    chronicle = chronicle_of(made)
    table = chronicle.agrees()
    if open_stock(chronicle.place).data_storage_version == "0.1":
        check_legacy_is_refused(table)
        return
    config, metadata = table.settings.config, table.settings.metadata
    held, rows = table.to_arrow(), table_of(table.schema, 7, 1000)
    for part in (rows.slice(0, 4), rows.slice(4).to_reader()):
        table.append(part, message="from us")
    after = open_stock(chronicle.place)
    assert after.count_rows() == held.num_rows + 7
    assert after.to_table().slice(0, held.num_rows).equals(held)
    plain = [name for name in rows.schema.names if name != "b"]  # of blobs a scan tells where they lie, not what they are
    assert after.to_table(columns=plain).slice(held.num_rows).equals(rows.select(plain))
    chronicle.agrees()
    chronicle.sound()
    for name in {index.name for index in table.indices.segments if index.base_id is not None}:
        table.drop_index(name)  # pylance's compaction would write it here and say that it lies in the base, where nobody finds it
    _go_on(chronicle, table.schema.names[0])
    table.refresh().overwrite(table_of(NEW_SCHEMA, 9), primary_key=[])
    assert (table.settings.config, table.settings.metadata) == (config, metadata)
    assert open_stock(chronicle.place).to_table().equals(table_of(NEW_SCHEMA, 9))
    chronicle.agrees()
    chronicle.sound()
    _go_on(chronicle, "other")
    chronicle.agrees(anew=True)
    chronicle.sound()


def check_legacy_is_refused(table: ty.Table) -> None:
    versions = table.layout.versions()
    for verb in (table.append, table.overwrite):
        with pytest.raises(ty.errors.UnsupportedFeature) as caught:
            verb(table_of(table.schema, 3))
        assert (caught.value.feature, caught.value.writing) == ("data format 0.1", True)
    assert table.layout.versions() == versions


def _go_on(chronicle: Chronicle, column: str) -> None:
    """pylance deletes, compacts and validates on top of our commits, and we see the same."""
    stock = open_stock(chronicle.place)
    rows = stock.count_rows()
    gone = stock.count_rows(f"{column} is null")
    stock.delete(f"{column} is null")
    before = _content(open_stock(chronicle.place))
    open_stock(chronicle.place).optimize.compact_files()
    stock = open_stock(chronicle.place)
    assert stock.count_rows() == rows - gone
    assert _content(stock) == before
    stock.validate()
    chronicle.agrees()


def _content(stock: Any) -> list[dict[str, Any]]:
    """All rows, without what tells where a blob lies in its file: that changes when files are rewritten."""
    rows = stock.to_table()
    found = sorted_rows(rows.drop_columns([name for name in rows.schema.names if name == "b"]))
    assert len(found) == stock.count_rows()
    return found


@pytest.mark.parametrize("kind", ["blobs_first_form", "blobs_second_form"])
def test_blobs_of_both_writers_are_read_back(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind](tmp_path / "t")
    table = open_ours(made)
    rows = table_of(table.schema, 3, 65)
    if kind == "blobs_first_form":
        rows = rows.set_column(1, table.schema.field("b"), pa.array([b"A" * (row + 1) for row in range(3)], pa.large_binary()))
    table.append(rows)
    for _ in range(2):
        stock = open_stock(made.uri)
        found = [blob and blob.read() for blob in stock.take_blobs("b", indices=list(range(stock.count_rows())))]
        assert [blob for blob in found if blob] == [b"y" * 100_000, b"A", b"AA", b"AAA"]
        stock.optimize.compact_files()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in ("shallow_clone", "clone_of_clone", "several_bases")])
def test_files_elsewhere_are_read_only_where_their_owner_said_so(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind](tmp_path / "t")
    with pytest.raises(ty.errors.CorruptTable, match="outside the allowed roots"):
        ty.Table.open(made.uri)
    with pytest.raises(ty.errors.CorruptTable, match="outside the allowed roots"):
        ty.Table.open(made.uri, allowed_bases=made.allowed_bases[:-1])
    rows = open_stock(made.uri).to_table()
    assert open_ours(made).to_arrow().equals(rows)
    assert ty.Table.open(made.uri, allowed_bases=["*"]).to_arrow().equals(rows)
    assert ty.Table.open(made.uri, allowed_bases=[tmp_path]).to_arrow().equals(rows)


def test_every_kind_that_lies_elsewhere_is_known(made: Made) -> None:
    """Only what has bases needs permission: no other kind of table is refused."""
    elsewhere = any(file.base_id is not None for fragment in open_ours(made).layout.fragments for file in fragment.files)
    assert elsewhere == bool(made.allowed_bases)


def _with_flags(uri: str, bits: int) -> None:
    path = manifest_path(uri, 1)
    file = decode_manifest_file(path.read_bytes(), source=path.name)
    flagged = replace(file.manifest, reader_flags=bits, writer_flags=bits)
    path.write_bytes(encode_manifest_file(flagged, file.transaction)[0])


@pytest.mark.parametrize("bit", [1024, 16384])
def test_features_we_can_read_but_not_write(bit: int, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write(ROWS, tmp_path / "t")
    _with_flags(uri, bit)
    table = ty.Table.open(uri)
    assert table.to_arrow().equals(open_stock(uri).to_table())
    for verb in (table.append, table.overwrite):
        with pytest.raises(ty.errors.UnsupportedFeature) as caught:
            verb(ROWS)
        assert (caught.value.bits, caught.value.writing) == ((bit,), True)
    assert table.layout.versions() == [1]


@pytest.mark.parametrize("bit", [64, 512, 4096, 8192, 1 << 16, 1 << 40])
def test_features_nobody_here_can_read(bit: int, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    write(ROWS, tmp_path / "t")
    _with_flags(uri, bit)
    with pytest.raises(ty.errors.UnsupportedFeature) as caught:
        ty.Table.open(uri)
    assert caught.value.bits == (bit,)
    with pytest.raises(ValueError, match=f"Flags: {bit}"):
        open_stock(uri)


def test_a_key_is_not_lost_by_accident(tmp_path: Path) -> None:
    made = KINDS["primary_key"](tmp_path / "t")
    table = open_ours(made)
    assert table.primary_key == ("id",)
    with pytest.raises(ty.errors.InvalidInput, match="primary key"):
        table.overwrite(pa.table({"other": [1]}))
    table.overwrite(table_of(pa.schema([("id", pa.int64()), ("n", pa.int8())]), 3))
    marks = open_stock(made.uri).schema.field("id").metadata
    assert any(key.startswith(b"lance-schema:unenforced-primary-key") for key in marks)
    assert open_ours(made).primary_key == ("id",)


def test_what_a_writer_said_is_in_the_history(tmp_path: Path) -> None:
    entry = open_ours(KINDS["described"](tmp_path / "t")).history()[0]
    assert (entry.message, entry.properties["who"]) == ("the first", "me")
