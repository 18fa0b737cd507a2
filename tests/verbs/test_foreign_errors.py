"""What pylance raises, by what it means: something to mend, something damaged, or the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.verbs.engine.access import open_access
from tiltyard.verbs.engine.pylance import lance_errors, open_dataset

ROWS = pa.table({"id": list(range(1000)), "s": ["x" * 20] * 1000})

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "another version": lambda file: file.write_bytes(file.read_bytes()[:-8] + b"\xff" * 4 + b"LANC"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("name", ["t", "schema", "not supported"])
def test_damaged_data_files(kind: str, name: str, tmp_path: Path) -> None:
    ty.Table.create(tmp_path / name, ROWS)
    (file,) = (tmp_path / name / "data").iterdir()
    DAMAGE[kind](file)
    for read in (
        lambda: ty.Table.open(tmp_path / name).to_arrow(),
        lambda: ty.Table.open(tmp_path / name).scan().read_all(),
        lambda: ty.Table.open(tmp_path / name).count_rows("id > 3"),
    ):
        with pytest.raises(CorruptTable) as caught:
            read()
        assert "data" in caught.value.file
        assert len(str(caught.value)) < 300
        if kind == "missing":
            assert caught.value.file == f"data/{file.name}"


@pytest.mark.parametrize("filter", ["nope = 1", "id =", "id = 'x'", "sum(id) > 1", "cast(s as int) > 3", "s = 'corrupt' and nope"])
def test_wrong_filters(filter: str, tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "t", ROWS)
    for read in (lambda: table.to_arrow(filter=filter), lambda: table.scan(filter=filter).read_all(), lambda: table.count_rows(filter)):
        with pytest.raises(InvalidInput):
            read()


def test_a_version_that_went_away(tmp_path: Path) -> None:
    ty.Table.create(tmp_path / "t", ROWS)
    with pytest.raises(NotFound):
        open_dataset(open_access(tmp_path / "t"), 9)


@pytest.mark.parametrize(
    ("raised", "doing", "expected"),
    [
        (pa.lib.ArrowException("Unknown error: something"), "write rows", InvalidInput),
        (pa.lib.ArrowCapacityError("array cannot contain more"), "read rows", InvalidInput),
        (AttributeError("no such thing"), "read rows", InvalidInput),
        (OverflowError("too large"), "read rows", InvalidInput),
        (OSError("LanceError(IO): Generic S3 error: timed out at s3/schema/data/x.lance"), "write rows", StorageError),
        (OSError("LanceError(IO): Generic S3 error: timed out at s3/schema/data/x.lance"), "read rows", StorageError),
        (OSError("LanceError(IO): cannot write /a/not supported/data/x.lance"), "write rows", StorageError),
        (OSError("LanceError(Schema): Append with different schema"), "write rows", InvalidInput),
        (pa.ArrowInvalid("External error: LanceError(IO): Generic S3 error: connection reset"), "read rows", StorageError),
    ],
)
def test_each_error_becomes_one_of_ours(raised: Exception, doing: str, expected: type[TiltyardError], tmp_path: Path) -> None:
    with pytest.raises(TiltyardError) as caught, lance_errors(open_access(tmp_path / "schema"), doing):
        raise raised
    assert type(caught.value) is expected


@pytest.mark.parametrize("raised", [MemoryError(), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_is_not_pylances_to_say_is_left_alone(raised: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(raised)) as caught, lance_errors(open_access(tmp_path), "read rows"):
        raise raised
    assert caught.value is raised
