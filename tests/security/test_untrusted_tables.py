"""A table is untrusted input: whoever wrote it cannot make us read, write or delete anywhere else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tests.support.corpus import message_of, with_message
from tiltyard.errors import CorruptTable, InvalidInput, NotFound, TiltyardError
from tiltyard.format.refs import Tag, encode_tag
from tiltyard.format.values import DataFile, DataFragment

ROWS: Final = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
SECRET_ROWS: Final = pa.table({"id": pa.array([666], pa.int64())})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ty.Table.create(tmp_path / "table", ROWS, durability="os")
    ty.Table.create(tmp_path / "secret", SECRET_ROWS, durability="os")
    return tmp_path / "table"


def _secret_file(root: Path) -> Path:
    return next((root.parent / "secret" / "data").iterdir())


def _edit(root: Path, change: Any) -> None:
    path = min((root / "_versions").glob("*.manifest"))
    data = path.read_bytes()
    message = message_of(data)
    change(message)
    path.write_bytes(with_message(data, message.SerializeToString(deterministic=True)))


@pytest.mark.parametrize(
    "spelling",
    ["../../secret/data/{name}", "{absolute}", "file://{absolute}", "x/../../../secret/data/{name}", "..%2f..%2fsecret%2fdata%2f{name}"],
)
def test_data_files_elsewhere(root: Path, spelling: str) -> None:
    secret = _secret_file(root)

    def change(message: Any) -> None:
        message.fragments[0].files[0].path = spelling.format(name=secret.name, absolute=secret)
        message.fragments[0].files[0].file_size_bytes = secret.stat().st_size
        message.fragments[0].physical_rows = 1

    _edit(root, change)
    with pytest.raises(CorruptTable, match="it names"):
        ty.Table.open(root)


@pytest.mark.parametrize("is_root", [False, True])
def test_a_base_elsewhere_is_refused_unless_allowed(root: Path, is_root: bool) -> None:
    secret = _secret_file(root)
    base = root.parent / "secret" if is_root else secret.parent

    def change(message: Any) -> None:
        message.base_paths.add(id=1, path=str(base), is_dataset_root=is_root)
        file = message.fragments[0].files[0]
        file.path, file.base_id, file.file_size_bytes = secret.name, 1, secret.stat().st_size
        message.fragments[0].physical_rows = 1
        message.reader_feature_flags |= 16
        message.writer_feature_flags |= 16

    _edit(root, change)
    for refused in ((), (root.parent / "other",), (str(base) + "-similar",)):
        with pytest.raises(CorruptTable, match="outside the allowed roots") as caught:
            ty.Table.open(root, allowed_bases=refused)
        assert "Allow this root" in caught.value.advice
    for allowed in ((base,), (root.parent,), ("*",)):
        assert ty.Table.open(root, allowed_bases=allowed).to_arrow() == SECRET_ROWS


@pytest.mark.parametrize("path", ["relative", "../secret", "", "s3://key:secret@bucket/x", "s3://bucket/x?sig=1", "/a/../b"])
def test_bases_that_are_no_address(root: Path, path: str) -> None:
    _edit(root, lambda message: message.base_paths.add(id=1, path=path))
    with pytest.raises(CorruptTable):
        ty.Table.open(root, allowed_bases=["/", root.parent])


def test_a_base_that_comes_later_is_refused_at_the_refresh(root: Path, tmp_path: Path) -> None:
    table = ty.Table.open(root)
    lance.dataset(root).add_bases([lance.DatasetBasePath(str(tmp_path / "secret"), name="x")])
    with pytest.raises(CorruptTable, match="outside the allowed roots"):
        table.refresh()
    assert table.version == 1


def test_index_files_elsewhere(root: Path) -> None:
    lance.dataset(root).create_scalar_index("id", "BTREE")
    path = min((root / "_versions").glob("*.manifest"))
    data = path.read_bytes()
    name = next(file.name for file in (root / "_indices").rglob("*") if file.is_file()).encode()
    assert name in data
    path.write_bytes(data.replace(name, b"../" + name[3:], 1))
    with pytest.raises(CorruptTable, match="does not stay in its directory"):
        ty.Table.open(root)


def test_operations_from_elsewhere_cannot_plant_a_path(root: Path) -> None:
    table = ty.Table.open(root)
    for path in ("../../secret/x.lance", "/etc/passwd", "a\0b", ""):
        fragment = DataFragment(0, (DataFile(path, (0,), (0,), size=10),), 1)
        with pytest.raises(TiltyardError):
            table.commit(ty.ops.Append((fragment,)))
    assert table.layout.latest_version() == 1
    assert ty.Table.open(root).to_arrow() == ROWS


NAMES: Final = (
    "",
    ".",
    "..",
    "../x",
    "a/../../b",
    "/etc",
    "a//b",
    "a\\b",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "x.lock",
    ".x",
    "x.",
    "a..b",
    "é\ud800",
    "a" * 300,
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_branches_and_tags_lead_nowhere(root: Path, name: str) -> None:
    """A file of that name does not help, be it planted by whoever wrote the table."""
    (root / "tree").mkdir()
    for kind in ("version", "branch"):
        with pytest.raises((NotFound, InvalidInput)):
            ty.Table.open(root, **{kind: name})  # type: ignore[arg-type]


def test_tags_and_branches_are_mappings(root: Path) -> None:
    table = ty.Table.open(root)
    for refs in (table.tags, table.branches):
        assert "none" not in refs
        assert "../x" not in refs
        assert refs.get("none") is None
        with pytest.raises(NotFound, match=r"^There is no (tag|branch) 'none'"):
            refs["none"]
        with pytest.raises(InvalidInput, match="is not the name of"):
            refs["../x"]


@pytest.mark.parametrize("branch", ["..", "../../secret", "/", "a/..", "a\\..\\b", "\0"])
def test_a_tag_cannot_lead_out_of_the_table(root: Path, branch: str) -> None:
    tags = root / "_refs" / "tags"
    tags.mkdir(parents=True)
    (tags / "evil.json").write_bytes(encode_tag(Tag(1, 10, branch)))
    with pytest.raises(CorruptTable, match="branch is not the name of a branch"):
        ty.Table.open(root, version="evil")


def test_a_planted_branch_of_dots_is_none(root: Path) -> None:
    """``tree/..`` is the table itself, and ``tree/../..`` what lies around it."""
    branches = root / "_refs" / "branches"
    branches.mkdir(parents=True)
    content = b'{"parentBranch": null, "parentVersion": 1, "createAt": 1, "manifestSize": 1}'
    for file_name, name in (("...json", ".."), ("..%2F..%2Fsecret.json", "../../secret")):
        (branches / file_name).write_bytes(content)
        with pytest.raises((NotFound, InvalidInput, CorruptTable)):
            ty.Table.open(root, branch=name)


def test_transaction_files_elsewhere(root: Path) -> None:
    def change(message: Any) -> None:
        message.ClearField("transaction_section")
        message.transaction_file = "../../secret/x.txn"

    _edit(root, change)
    with pytest.raises(CorruptTable):
        ty.Table.open(root)


def test_links_to_directories_are_not_followed_when_files_are_listed(root: Path) -> None:
    """A link inside a table is the doing of whoever owns the disk, not of a manifest. Looking through a table does not follow it."""
    (root / "data" / "link").symlink_to(root.parent / "secret" / "data", target_is_directory=True)
    report = ty.Table.open(root).check()
    assert report.ok
    assert not [path for path in report.orphans if "link/" in path]


def test_failed_commits_delete_nothing_elsewhere(root: Path) -> None:
    """After a failed append only the files it wrote go; what a hostile manifest names is not touched."""
    before = sorted(path for path in root.parent.rglob("*") if path.is_file())
    table = ty.Table.open(root)
    hostile = replace(table.layout.fragments[0], files=(DataFile("x.lance", (0,), (0,)),), deletion_file=None)
    shutil.copyfile(_secret_file(root), root / "data" / "x.lance")
    with pytest.raises(TiltyardError):
        table.commit(ty.ops.Append((replace(hostile, physical_rows=-1),)))
    (root / "data" / "x.lance").unlink()
    assert sorted(path for path in root.parent.rglob("*") if path.is_file()) == before
