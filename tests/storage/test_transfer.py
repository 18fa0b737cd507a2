"""An object is carried from any store to any other, whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore as Client

from tiltyard.errors import NotFound
from tiltyard.interfaces import ObjectStore
from tiltyard.storage import transfer as module
from tiltyard.storage.cloud import BucketPath, CloudStore
from tiltyard.storage.local import LocalStore
from tiltyard.storage.memory import MemoryStore
from tiltyard.storage.transfer import transfer

KINDS: dict[str, Callable[[Path], ObjectStore]] = {
    "local": LocalStore,
    "cloud": lambda root: CloudStore(Client(), BucketPath(f"s3://{root.name}", root.name)),
    "memory": lambda root: MemoryStore(),
}
BOTH = [pytest.param(one, other, id=f"{one} to {other}") for one in KINDS for other in KINDS]


@pytest.mark.parametrize(("one", "other"), BOTH)
@pytest.mark.parametrize("size", [0, 1, 10, 25])
def test_every_way(tmp_path: Path, one: str, other: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 10)
    source, target = KINDS[one](tmp_path / "one"), KINDS[other](tmp_path / "other")
    source.put("data/a.lance", bytes(range(size)))
    target.put("data/b.lance", b"something else")
    transfer(source, "data/a.lance", target, "data/b.lance")
    assert target.get("data/b.lance") == bytes(range(size))
    assert [info.path for info in target.list("")] == ["data/b.lance"]


@pytest.mark.parametrize(("one", "other"), BOTH)
def test_what_is_not_there_leaves_nothing(tmp_path: Path, one: str, other: str) -> None:
    source, target = KINDS[one](tmp_path / "one"), KINDS[other](tmp_path / "other")
    with pytest.raises(NotFound):
        transfer(source, "data/a.lance", target, "data/b.lance")
    assert list(target.list("")) == []
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
