"""What only a file system has: the order of flushes, missing abilities, full disks."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any, Literal

import lance
import pyarrow as pa
import pytest

import tiltyard as ty
from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, StorageError
from tiltyard.storage import LocalStore, files

Step = tuple[str, str]


class Recorder:
    """Notes the system calls that matter for durability, in order, with the name each one was about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Step] = []
        self._patch = monkeypatch
        monkeypatch.setattr(files, "TICK", 0)  # a directory made just now is as good as an old one
        self._note("link", 1)
        self._note("replace", 1)
        self._note("unlink", 0)
        self._note("mkdir", 0)
        real_fsync = os.fsync

        def fsync(descriptor: int) -> None:
            real_fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.steps.append(("fsync directory" if path.is_dir() else "fsync file", self._shown(path)))

        monkeypatch.setattr(os, "fsync", fsync)

    def _note(self, name: str, position: int) -> None:
        real: Callable[..., Any] = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            answer = real(*arguments, **options)
            self.steps.append((name, self._shown(Path(arguments[position]))))
            return answer

        self._patch.setattr(os, name, call)

    def _shown(self, path: Path) -> str:
        return "temporary" if path.name.startswith(".tmp.") else path.name

    def taken(self) -> list[Step]:
        steps, self.steps = self.steps, []
        return steps


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"


def fail(monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, when: Callable[[Any], bool] = lambda first: True) -> None:
    real: Callable[..., Any] = getattr(os, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if when(arguments[0]):
            raise OSError(code, os.strerror(code), "planted")
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


def is_directory(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").readlink().is_dir()


def above(directory: Path) -> list[Step]:
    """The flushes of all directories above one, up to where the file system is mounted."""
    levels: list[Step] = []
    while not os.path.ismount(directory):
        directory = directory.parent
        levels.append(("fsync directory", directory.name))
    return levels


def fail_once(monkeypatch: pytest.MonkeyPatch, *, when: Callable[[Path], bool]) -> list[Path]:
    """Lets the first flush of a path that fits fail, and all others succeed, as Linux does; returns what failed."""
    failed: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not failed and when(path):
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return failed


def all_files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


FORKING = """
import os, sys
from tiltyard.storage.local import LocalStore
store = LocalStore(sys.argv[1])
store.put_unsynced("d/1", b"x")
store.put_unsynced("d/2", b"x")
store.sync(["d/1", "d/2"])
child = os.fork()
store.sync(["d/1", "d/2"])
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


class TestFlushing:
    CREATE = (("fsync file", "temporary"), ("link", "1"), ("unlink", "temporary"), ("fsync directory", "d"))

    def test_create_flushes_the_file_then_names_it_then_flushes_the_directory(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root)
        store.put_if_absent("d/0", b"")
        recorder.taken()
        store.put_if_absent("d/1", b"x")
        assert tuple(recorder.taken()) == self.CREATE

    def test_replace_flushes_in_that_order_too(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root)
        store.put("d/1", b"old")
        recorder.taken()
        store.put("d/1", b"new")
        assert recorder.taken() == [("fsync file", "temporary"), ("replace", "1"), ("fsync directory", "d")]

    def test_rename_flushes_the_source_first_and_drops_its_name_last(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root)
        store.put("d/source", b"x")
        recorder.taken()
        store.rename_if_absent("d/source", "d/1")
        assert recorder.taken() == [("fsync file", "source"), ("link", "1"), ("fsync directory", "d"), ("unlink", "source")]

    def test_new_directories_are_flushed_into_their_parents(self, root: Path, recorder: Recorder) -> None:
        LocalStore(root).put_if_absent("d/1", b"x")
        steps = recorder.taken()
        assert [step for step in steps if step[0] == "mkdir"] == [("mkdir", "table"), ("mkdir", "d")]
        flushed = {name for call, name in steps if call == "fsync directory"}
        assert flushed == {"d", "table", *(step[1] for step in above(root))}
        assert steps.index(("link", "1")) < len(steps) - 1 - steps[::-1].index(("fsync directory", "d"))

    def test_directories_somebody_else_made_are_flushed_once(self, root: Path, recorder: Recorder) -> None:
        (root / "d").mkdir(parents=True)
        store = LocalStore(root)
        recorder.taken()
        store.put_if_absent("d/0", b"x")
        assert recorder.taken()[3:] == [("fsync directory", "d"), ("fsync directory", "table"), *above(root)]
        store.put_if_absent("d/1", b"x")
        assert tuple(recorder.taken()) == self.CREATE

    def test_all_levels_that_somebody_else_made_are_flushed_not_only_those_of_the_table(self, tmp_path: Path, recorder: Recorder) -> None:
        """pylance makes whatever is missing above a table, too, and flushes none of it."""
        root = tmp_path / "n1" / "n2" / "n3" / "t"
        lance.write_dataset(pa.table({"x": [1]}), str(root))
        (data,) = (root / "data").iterdir()
        store = LocalStore(root)
        store.sync([f"data/{data.name}"])
        steps = recorder.taken()
        assert sorted(steps[:2]) == [("fsync directory", "data"), ("fsync file", data.name)]
        assert steps[2:] == [("fsync directory", "t"), *above(root)]
        store.put("_versions/hint", b"x")
        assert recorder.taken()[2:] == [("fsync directory", "_versions"), ("fsync directory", "t")]

    def test_the_levels_behind_a_link_are_flushed(self, tmp_path: Path, recorder: Recorder) -> None:
        (tmp_path / "real" / "t").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        recorder.taken()
        LocalStore(tmp_path / "link" / "t").put("x", b"")
        assert recorder.taken()[2:4] == [("fsync directory", "t"), ("fsync directory", "real")]

    def test_a_directory_made_again_is_flushed_again(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        shutil.rmtree(root / "d")
        recorder.taken()
        store.put("d/0", b"")
        assert recorder.taken()[:2] == [("mkdir", "d"), ("fsync directory", "table")]

    @pytest.mark.parametrize("removed", ["_deletions", "_tiltyard/floor", "_tiltyard"])
    def test_a_directory_that_others_removed_and_made_again_is_flushed_again(self, root: Path, recorder: Recorder, removed: str) -> None:
        """A cleanup of another process removes what is empty, and pylance makes it again, without a flush."""
        store, path = LocalStore(root), f"{removed}/floor/1" if removed == "_tiltyard" else f"{removed}/1"
        store.put(path, b"")
        store.delete(path)
        LocalStore(root).remove_empty(f"{removed}/", datetime.max.replace(tzinfo=UTC))
        assert not (root / removed).exists()
        (root / path).parent.mkdir(parents=True)
        recorder.taken()
        store.put(path, b"")
        flushed = [name for call, name in recorder.taken() if call == "fsync directory"]
        above = ["_tiltyard"] if removed == "_tiltyard/floor" else [*reversed(Path(path).parent.parts[:-1]), "table"]
        assert flushed == [Path(path).parent.name, *above]
        store.put(path, b"")
        assert [name for call, name in recorder.taken() if call == "fsync directory"] == [Path(path).parent.name]

    def test_a_change_that_the_clock_of_directories_would_not_show_is_not_relied_on(
        self, root: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "TICK", 1 << 60)
        store = LocalStore(root)
        store.put("d/0", b"")
        recorder.taken()
        store.put("d/1", b"")
        assert recorder.taken()[-2:] == [("fsync directory", "d"), ("fsync directory", "table")]

    def test_a_level_above_that_may_not_be_read_is_left_alone(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fail(monkeypatch, "open", errno.EACCES, when=lambda path: path == str(root.parent))
        LocalStore(root).put("d/0", b"x")
        assert all_files(root) == {"d/0"}

    def test_sync_flushes_what_others_wrote(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root)
        store.put("data/0", b"")
        (root / "data/1.lance").write_bytes(b"by pylance")
        (root / "data/2.lance").write_bytes(b"by pylance")
        recorder.taken()
        store.sync(["data/1.lance", "data/2.lance"])
        assert sorted(recorder.taken()) == [("fsync directory", "data"), ("fsync file", "1.lance"), ("fsync file", "2.lance")]
        with pytest.raises(NotFound):
            store.sync(["data/gone.lance"])

    def test_files_of_several_directories_are_flushed_at_the_same_time(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All four are under way before the first returns: one after the other would be four waits for the disk."""
        store = LocalStore(root)
        store.put("data/1", b"")
        store.put("_transactions/0", b"")
        store.put_unsynced("_transactions/1", b"x")
        together, real, asked = Barrier(4), files.sync_path, list[str]()

        def sync_path(path: str) -> None:
            asked.append(path)
            together.wait(timeout=30)
            real(path)

        monkeypatch.setattr(files, "sync_path", sync_path)
        assert files.sync_together([f"{root}/{name}" for name in ("data/1", "_transactions/1", "data", "_transactions")]) == [None] * 4
        assert len(asked) == 4

    def test_what_is_put_without_a_flush_is_there_at_once_and_flushed_by_sync(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        recorder.taken()
        store.put_unsynced("d/1", b"x")
        assert recorder.taken() == [("replace", "1")]
        assert store.get("d/1") == b"x"
        store.sync(["d/1"])
        assert sorted(recorder.taken()) == [("fsync directory", "d"), ("fsync file", "1")]

    def test_a_forked_child_flushes_with_threads_of_its_own(self, root: Path) -> None:
        assert subprocess.run([sys.executable, "-c", FORKING, str(root)], timeout=60, check=False).returncode == 0

    def test_without_new_threads_files_are_flushed_one_by_one(
        self, root: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when the interpreter is about to end."""
        store = LocalStore(root)
        store.put("d/1", b"")
        store.put("d/2", b"")
        ended = ThreadPoolExecutor(1)
        ended.shutdown()
        monkeypatch.setattr(files, "_flushers", ended)
        recorder.taken()
        store.sync(["d/1", "d/2"])
        assert recorder.taken() == [("fsync file", "1"), ("fsync file", "2"), ("fsync directory", "d")]

    def test_a_large_file_is_written_in_pieces(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of a version of 100,000 fragments, one call took ten times as long as sixteen; and a call may write less than it was given."""
        real, sizes = os.write, list[int]()

        def write(descriptor: int, data: memoryview) -> int:
            sizes.append(len(data))
            return real(descriptor, data[: len(data) - (len(sizes) == 1)])

        monkeypatch.setattr(os, "write", write)
        content = os.urandom(5 * 2**20 // 2)
        LocalStore(root).put("d/1", content)
        assert (root / "d/1").read_bytes() == content
        assert sizes == [2**20, 2**20, 2**19 + 1]

    def test_the_os_mode_flushes_nothing(self, root: Path, recorder: Recorder) -> None:
        store = LocalStore(root, durability="os")
        store.put_if_absent("d/1", b"x")
        store.put("d/1", b"y")
        store.copy_if_absent("d/1", "e/1")
        store.rename_if_absent("e/1", "e/2")
        store.sync(["d/1"])
        assert not [step for step in recorder.taken() if step[0].startswith("fsync")]

    def test_an_unknown_durability_is_refused(self, root: Path) -> None:
        with pytest.raises(InvalidInput, match="durability"):
            LocalStore(root, durability="perhaps")  # type: ignore[arg-type]


class TestFailures:
    def test_a_full_disk_before_the_name_is_surely_not_applied(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        fail(monkeypatch, "write", errno.ENOSPC)
        for write in (store.put, store.put_if_absent):
            with pytest.raises(StorageError, match=r"No space left on device.*Free space") as caught:
                write("d/1", b"x" * 10)
            assert not caught.value.maybe_applied
            assert caught.value.name == "d/1"
        assert all_files(root) == {"d/0"}

    def test_a_failed_flush_of_the_file_is_surely_not_applied(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        fail(monkeypatch, "fsync", errno.EIO)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("d/1", b"x")
        assert not caught.value.maybe_applied
        assert not caught.value.transient, "a second flush would succeed although the bytes are lost"
        assert all_files(root) == {"d/0"}

    def test_a_failed_flush_before_a_rename_is_surely_not_applied(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        fail(monkeypatch, "fsync", errno.EIO)
        with pytest.raises(StorageError) as caught:
            store.rename_if_absent("d/0", "d/1")
        assert (caught.value.maybe_applied, caught.value.transient) == (False, False)
        assert all_files(root) == {"d/0"}

    def test_a_failed_flush_of_the_directory_leaves_the_outcome_open(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        fail(monkeypatch, "fsync", errno.EIO, when=is_directory)
        for path, write in (("d/1", store.put), ("d/2", store.put_if_absent)):
            with pytest.raises(StorageError) as caught:
                write(path, b"x")
            assert (caught.value.maybe_applied, caught.value.unsynced, caught.value.transient) == (True, True, False)
        assert all_files(root) == {"d/0", "d/1", "d/2"}

    def test_what_is_not_flushed_yet_can_be_flushed_later(self, root: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root)
        failed = fail_once(monkeypatch, when=lambda path: path == root.parent)
        (root / "d").mkdir(parents=True)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("d/1", b"x")
        assert caught.value.unsynced
        assert failed == [root.parent]
        recorder.taken()
        store.sync(["d/1"])
        steps = recorder.taken()
        assert sorted(steps[:2]) == [("fsync directory", "d"), ("fsync file", "1")]
        assert steps[2:] == [("fsync directory", "table"), *above(root)]

    @pytest.mark.parametrize("durability", ["fsync", "os"])
    def test_a_name_that_may_be_there_was_not_flushed(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, durability: Literal["fsync", "os"]
    ) -> None:
        store = LocalStore(root, durability=durability)
        store.put("d/0", b"")
        fail(monkeypatch, "unlink", errno.EIO)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("d/1", b"x")
        assert (caught.value.maybe_applied, caught.value.unsynced) == (True, durability == "fsync")
        fail(monkeypatch, "link", errno.ETIMEDOUT)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("d/2", b"x")
        assert (caught.value.maybe_applied, caught.value.unsynced) == (True, durability == "fsync")

    def test_a_sync_that_fails_above_the_table_fails(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "d").mkdir(parents=True)
        (root / "d" / "1").write_bytes(b"by pylance")
        fail_once(monkeypatch, when=lambda path: path == root.parent)
        store = LocalStore(root)
        with pytest.raises(StorageError) as caught:
            store.sync(["d/1"])
        assert (caught.value.maybe_applied, caught.value.transient) == (False, False)

    def test_a_commit_whose_data_could_not_be_flushed_is_not_acknowledged(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Linux reports a lost page once; the next flush of the same file succeeds."""
        table = ty.Table.create(root, pa.table({"x": [1]}))
        failed = fail_once(monkeypatch, when=lambda path: path.suffix == ".lance" and path.is_file())
        with pytest.raises(StorageError) as caught:
            table.append(pa.table({"x": [2]}))
        assert failed
        assert not caught.value.transient
        assert ty.Table.open(root).version == 1

    def test_a_failed_sync_of_data_is_no_open_outcome(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root)
        store.put("d/0", b"")
        fail(monkeypatch, "fsync", errno.EIO)
        with pytest.raises(StorageError) as caught:
            store.sync(["d/0"])
        assert not caught.value.maybe_applied
        assert not caught.value.transient

    def test_a_file_where_a_directory_should_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        store = LocalStore(tmp_path)
        with pytest.raises(StorageError, match="part of the path is a file") as caught:
            store.put_if_absent("file/x", b"")
        assert not caught.value.maybe_applied
        with pytest.raises(NotFound):
            store.get("file/x")

    def test_a_link_answer_that_got_lost_on_a_network_file_system(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server made the link, the client asked again and was told that the name exists: it is our own file."""
        real = os.link

        def link_twice(source: str, target: str) -> None:
            real(source, target)
            real(source, target)

        monkeypatch.setattr(os, "link", link_twice)
        store = LocalStore(root)
        store.put_if_absent("d/1", b"ours")
        assert store.get("d/1") == b"ours"
        with pytest.raises(AlreadyExists):
            store.put_if_absent("d/1", b"another")
        assert all_files(root) == {"d/1"}

    def test_an_interrupt_leaves_no_temporary_file(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root, durability="os")
        store.put("d/0", b"")

        def interrupted(source: str, target: str) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "link", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put_if_absent("d/1", b"x")
        assert all_files(root) == {"d/0"}


class TestWithoutHardLinks:
    @pytest.fixture(autouse=True, params=[errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
    def no_links(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        fail(monkeypatch, "link", request.param)

    @pytest.fixture(params=["os", "fsync"])
    def store(self, root: Path, request: pytest.FixtureRequest) -> LocalStore:
        return LocalStore(root, durability=request.param)

    def test_a_rename_that_never_replaces_takes_its_place(self, store: LocalStore, root: Path) -> None:
        store.put_if_absent("d/1", b"first")
        with pytest.raises(AlreadyExists):
            store.put_if_absent("d/1", b"second")
        store.put("d/.tmp.staged", b"staged")
        with pytest.raises(AlreadyExists):
            store.rename_if_absent("d/.tmp.staged", "d/1")
        store.rename_if_absent("d/.tmp.staged", "d/2")
        assert (store.get("d/1"), store.get("d/2")) == (b"first", b"staged")
        assert all_files(root) == {"d/1", "d/2"}

    def test_a_file_system_with_neither_is_refused(self, store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class WithoutRename:
            def __init__(self, name: None, use_errno: bool) -> None: ...

        monkeypatch.setattr(ctypes, "CDLL", WithoutRename)
        with pytest.raises(StorageError, match="neither hard links") as caught:
            store.put_if_absent("d/1", b"x")
        assert not caught.value.maybe_applied
        assert all_files(root) == set()


class TestCost:
    def test_a_create_takes_five_calls(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root, durability="os")
        store.put("d/0", b"")
        calls: list[str] = []

        def count(name: str) -> None:
            real: Callable[..., Any] = getattr(os, name)

            def call(*arguments: Any, **options: Any) -> Any:
                calls.append(name)
                return real(*arguments, **options)

            monkeypatch.setattr(os, name, call)

        for name in ("open", "write", "close", "link", "unlink", "stat", "fsync", "listdir", "scandir", "mkdir", "replace", "fstat"):
            count(name)
        store.put_if_absent("d/1", b"x")
        assert calls == ["open", "write", "close", "link", "unlink"]

    def test_naming_versions_looks_at_no_file(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = LocalStore(root, durability="os")
        versions = {f"{number}.manifest" for number in range(10)}
        for name in versions:
            store.put(f"_versions/{name}", b"")
        looked_at: list[Any] = []
        real = os.stat

        def stat(path: Any, **options: Any) -> os.stat_result:
            looked_at.append(path)
            return real(path, **options)

        monkeypatch.setattr(os, "stat", stat)
        assert set(store.names("_versions/")) == versions
        assert looked_at == []


def test_the_directory_of_a_table_is_not_an_object(root: Path) -> None:
    store = LocalStore(root, durability="os")
    store.put("orders.lance/_versions/1.manifest", b"")
    store.put("stray.lance", b"")
    store.put("plain/x", b"")
    assert list(store.names("")) == ["stray.lance"]


def test_a_vanishing_file_is_left_out_of_a_listing(root: Path) -> None:
    store = LocalStore(root, durability="os")
    store.put("d/a", b"")
    store.put("d/b", b"")
    listing: Iterator[Any] = store.list("d/")
    store.delete("d/b")
    assert [info.path for info in listing] == ["d/a"]


def test_listing_is_sorted_and_survives_a_circle_of_links(root: Path) -> None:
    store = LocalStore(root, durability="os")
    for path in ("b", "a/2", "a/1", "a-1", "c/d/e"):
        store.put(path, b"")
    (root / "a" / "loop").symlink_to(root)
    assert [info.path for info in store.list("")] == ["a-1", "a/1", "a/2", "b", "c/d/e"]
    assert set(store.names("a/")) == {"1", "2"}


def test_it_reads_and_hides_as_pylance_leaves_things(root: Path) -> None:
    (root / "_versions").mkdir(parents=True)
    for name in ("1.manifest", ".tmp_2.manifest_f00", ".tmpAbC", "3.manifest#1"):
        (root / "_versions" / name).write_bytes(b"")
    assert list(LocalStore(root).names("_versions/")) == ["1.manifest"]
