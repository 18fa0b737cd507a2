"""What every object store must do. A backend's test class inherits this and gives a ``store`` fixture: an empty store, fresh for each test.

class TestMyStore(ObjectStoreTests):
    @pytest.fixture
    def store(self):
        return MyStore(...)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound
from tiltyard.interfaces import ObjectStore
from tiltyard.storage.paths import TEMPORARY_PREFIX

THREADS = 8

BAD_PATHS = ("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", "a\0b", "a\\b", "..\\a", "/etc/passwd")
UNUSUAL_NAMES = (
    "ünïcode/ß.bin",
    "日本語.txt",
    "with space",
    "per%20cent",
    "plus+and=eq",
    "q?query#frag",
    "(brackets)",
    "~tilde",
    "a:b@c",
    "-dash",
)


@contextmanager
def raises(kind: type[Exception], path: str = "") -> Iterator[None]:
    """Fails unless exactly this class is raised; ``path`` must be its ``name`` if given."""
    caught: Exception | None = None
    try:
        yield
    except kind as error:
        caught = error
    assert caught is not None, f"{kind.__name__} was not raised"
    assert type(caught) is kind, f"expected {kind.__name__}, got {type(caught).__name__}"
    assert not path or getattr(caught, "name", None) == path, f"the error does not name {path!r}: {caught!r}"


def race(calls: Sequence[Callable[[], None]]) -> list[str]:
    """Starts all calls at one moment; gives for each ``"won"`` or ``"lost"`` (it met ``AlreadyExists``). Other errors are raised."""
    barrier = threading.Barrier(len(calls))

    def attempt(call: Callable[[], None]) -> str:
        barrier.wait(30)
        try:
            call()
        except AlreadyExists:
            return "lost"
        return "won"

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(attempt, calls))


class ObjectStoreTests:
    """The conformance suite."""

    rounds = 20
    """How often each race is run."""

    many = 1100
    """More names than a cloud store lists in one answer."""

    # reading and writing

    def test_what_was_put_is_got(self, store: ObjectStore) -> None:
        store.put("a/b.bin", b"one")
        assert store.get("a/b.bin") == b"one"

    def test_put_replaces(self, store: ObjectStore) -> None:
        store.put("a", b"a longer first content")
        store.put("a", b"two")
        assert store.get("a") == b"two"
        assert store.head("a").size == 3

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        store.put_if_absent("d/empty", b"")
        assert store.get("d/empty") == b""
        assert store.head("d/empty").size == 0
        assert list(store.names("d/")) == ["empty"]
        assert store.get_range("d/empty", 0, 5) == b""
        assert store.get_range("d/empty", -5, 5) == b""

    def test_a_large_object_comes_back_whole(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * (12 << 10)
        store.put("large/put", data)
        store.put_if_absent("large/created", data)
        assert store.get("large/put") == data
        assert store.get("large/created") == data
        assert store.get_range("large/created", 1 << 20, 100) == data[1 << 20 : (1 << 20) + 100]

    def test_unusual_names(self, store: ObjectStore) -> None:
        for name in UNUSUAL_NAMES:
            store.put_if_absent(f"names/{name}", name.encode())
        for name in UNUSUAL_NAMES:
            assert store.get(f"names/{name}") == name.encode()
        assert {info.path for info in store.list("names/")} == {f"names/{name}" for name in UNUSUAL_NAMES}
        assert set(store.names("names/")) == {name for name in UNUSUAL_NAMES if "/" not in name}

    def test_head_tells_path_size_and_time(self, store: ObjectStore) -> None:
        store.put("d/x", b"12345")
        info = store.head("d/x")
        assert (info.path, info.size) == ("d/x", 5)
        assert info.modified.tzinfo is not None
        assert abs(datetime.now(UTC) - info.modified) < timedelta(minutes=5)

    def test_ranges(self, store: ObjectStore) -> None:
        store.put("r", b"0123456789")
        wanted = {
            (0, 10): b"0123456789",
            (0, 3): b"012",
            (4, 3): b"456",
            (8, 5): b"89",
            (10, 5): b"",
            (99, 5): b"",
            (3, 0): b"",
            (-3, 3): b"789",
            (-3, 2): b"78",
            (-3, 9): b"789",
            (-10, 10): b"0123456789",
            (-99, 4): b"0123",
            (-99, 99): b"0123456789",
        }
        for (start, length), expected in wanted.items():
            assert store.get_range("r", start, length) == expected, f"range {start}, {length}"
        with raises(InvalidInput):
            store.get_range("r", 0, -1)

    def test_what_is_not_there(self, store: ObjectStore) -> None:
        store.put("d/x", b"")
        for path in ("nope", "d/nope", "nope/nope"):
            with raises(NotFound, path):
                store.get(path)
            with raises(NotFound, path):
                store.get_range(path, 0, 1)
            with raises(NotFound, path):
                store.get_range(path, -1, 1)
            with raises(NotFound, path):
                store.head(path)
            with raises(NotFound, path):
                store.copy_if_absent(path, "target")
            with raises(NotFound, path):
                store.rename_if_absent(path, "target")
        with raises(NotFound, "target"):
            store.get("target")

    def test_a_directory_is_no_object(self, store: ObjectStore) -> None:
        store.put("d/x", b"")
        with raises(NotFound, "d"):
            store.get("d")
        with raises(NotFound, "d"):
            store.head("d")
        store.delete("d")
        assert store.get("d/x") == b""

    def test_delete_is_idempotent(self, store: ObjectStore) -> None:
        store.put("d/x", b"1")
        store.delete("d/x")
        with raises(NotFound, "d/x"):
            store.get("d/x")
        store.delete("d/x")
        store.delete("never/was")
        assert list(store.list("")) == []

    def test_a_deleted_name_can_be_created_again(self, store: ObjectStore) -> None:
        store.put_if_absent("x", b"1")
        store.delete("x")
        store.put_if_absent("x", b"2")
        assert store.get("x") == b"2"

    def test_sync_of_what_is_there(self, store: ObjectStore) -> None:
        store.put("d/x", b"1")
        store.put("y", b"2")
        store.sync(["d/x", "y"])
        assert (store.get("d/x"), store.get("y")) == (b"1", b"2")

    # creating

    def test_create_does_not_replace(self, store: ObjectStore) -> None:
        store.put_if_absent("d/x", b"first")
        with raises(AlreadyExists, "d/x"):
            store.put_if_absent("d/x", b"second")
        assert store.get("d/x") == b"first"

    def test_create_does_not_replace_what_put_made(self, store: ObjectStore) -> None:
        store.put("x", b"first")
        with raises(AlreadyExists, "x"):
            store.put_if_absent("x", b"second")
        assert store.get("x") == b"first"

    def test_copy_if_absent(self, store: ObjectStore) -> None:
        store.put("from", b"1")
        store.copy_if_absent("from", "deep/er/to")
        assert (store.get("from"), store.get("deep/er/to")) == (b"1", b"1")
        store.put("from", b"2")
        assert store.get("deep/er/to") == b"1"
        with raises(AlreadyExists, "deep/er/to"):
            store.copy_if_absent("from", "deep/er/to")
        assert (store.get("from"), store.get("deep/er/to")) == (b"2", b"1")

    def test_rename_if_absent(self, store: ObjectStore) -> None:
        store.put("from", b"1")
        store.rename_if_absent("from", "deep/er/to")
        assert store.get("deep/er/to") == b"1"
        with raises(NotFound, "from"):
            store.get("from")
        store.put("from", b"2")
        with raises(AlreadyExists, "deep/er/to"):
            store.rename_if_absent("from", "deep/er/to")
        assert (store.get("from"), store.get("deep/er/to")) == (b"2", b"1")

    def test_a_staged_object_can_be_renamed_into_place(self, store: ObjectStore) -> None:
        staged = f"d/{TEMPORARY_PREFIX}.staged"
        store.put(staged, b"1")
        assert list(store.names("d/")) == []
        store.rename_if_absent(staged, "d/x")
        assert list(store.names("d/")) == ["x"]

    def test_of_many_creators_one_wins(self, store: ObjectStore) -> None:
        for number in range(self.rounds):
            path = f"race/put-{number}"
            outcomes = race([lambda path=path, me=me: store.put_if_absent(path, b"%d" % me * 1000) for me in range(THREADS)])  # type: ignore[misc]
            assert outcomes.count("won") == 1, f"round {number}: {outcomes}"
            assert store.get(path) == b"%d" % outcomes.index("won") * 1000

    def test_of_many_renamers_one_wins(self, store: ObjectStore) -> None:
        for number in range(self.rounds):
            path = f"race/rename-{number}"
            sources = [f"race/{TEMPORARY_PREFIX}.{number}.{me}" for me in range(THREADS)]
            for source in sources:
                store.put(source, source.encode())
            outcomes = race([lambda path=path, source=source: store.rename_if_absent(source, path) for source in sources])  # type: ignore[misc]
            assert outcomes.count("won") == 1, f"round {number}: {outcomes}"
            assert store.get(path) == sources[outcomes.index("won")].encode()

    def test_of_many_copiers_one_wins(self, store: ObjectStore) -> None:
        sources = [f"race/source-{me}" for me in range(THREADS)]
        for source in sources:
            store.put(source, source.encode())
        for number in range(self.rounds):
            path = f"race/copy-{number}"
            outcomes = race([lambda path=path, source=source: store.copy_if_absent(source, path) for source in sources])  # type: ignore[misc]
            assert outcomes.count("won") == 1, f"round {number}: {outcomes}"
            assert store.get(path) == sources[outcomes.index("won")].encode()

    def test_replacing_is_atomic(self, store: ObjectStore) -> None:
        """A reader beside a writer sees one content or another, whole."""
        contents = [b"%d" % digit * (30_000 + 7_000 * digit) for digit in range(3)]
        store.put("hot", contents[0])
        done = threading.Event()

        def write() -> None:
            try:
                for number in range(3 * self.rounds):
                    store.put("hot", contents[number % 3])
            finally:
                done.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            seen = [store.get("hot")]
            while not done.is_set():
                seen.append(store.get("hot"))
            writing.result()
        assert set(seen) <= set(contents), f"torn reads of {sorted({len(data) for data in seen})} bytes"

    # listing

    def test_list_descends_and_names_does_not(self, store: ObjectStore) -> None:
        paths = ["top", "d/a", "d/b", "d/e/f/g", "d2/x"]
        for path in paths:
            store.put(path, path.encode())
        assert {(info.path, info.size) for info in store.list("")} == {(path, len(path)) for path in paths}
        assert {info.path for info in store.list("d/")} == {"d/a", "d/b", "d/e/f/g"}
        assert {info.path for info in store.list("d/e/")} == {"d/e/f/g"}
        assert set(store.names("")) == {"top"}
        assert set(store.names("d/")) == {"a", "b"}
        assert list(store.names("d/e/")) == []

    def test_listing_what_is_not_there_is_empty(self, store: ObjectStore) -> None:
        assert list(store.list("")) == []
        assert list(store.names("")) == []
        assert list(store.list("nope/")) == []
        assert list(store.names("nope/")) == []

    def test_list_begins_after_the_offset(self, store: ObjectStore) -> None:
        paths = ["d/1", "d/2/x", "d/2-y", "d/3", "e/1"]
        for path in paths:
            store.put(path, b"")
        for offset in ("", "d/1", "d/2", "d/2-y", "d/2/x", "d/2.5", "d/3", "d/9", "e/1", "z"):
            assert {info.path for info in store.list("", offset=offset)} == {path for path in paths if path > offset}, f"offset {offset!r}"
            expected = {path for path in paths if path > offset and path.startswith("d/")}
            assert {info.path for info in store.list("d/", offset=offset)} == expected, f"offset {offset!r} in d/"

    def test_an_ordered_store_lists_in_order(self, store: ObjectStore) -> None:
        names = [f"{2**64 - 1 - version:020d}.manifest" for version in (3, 1, 2, 300, 20, 7)]
        for name in names:
            store.put(f"_versions/{name}", b"")
        listed = [info.path for info in store.list("_versions/")]
        named = list(store.names("_versions/"))
        if store.ordered:
            assert named == sorted(names)
            assert listed == [f"_versions/{name}" for name in sorted(names)]
        assert sorted(named) == sorted(names)
        assert len(listed) == len(names)

    def test_many_names(self, store: ObjectStore) -> None:
        names = {f"{number:05d}" for number in range(self.many)}
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda name: store.put(f"m/{name}", b""), sorted(names)))
        assert set(store.names("m/")) == names
        assert {info.path for info in store.list("m/", offset="m/00009")} == {f"m/{name}" for name in names if name > "00009"}

    def test_listing_never_shows_temporary_files(self, store: ObjectStore) -> None:
        store.put("d/x", b"1")
        store.put(f"d/{TEMPORARY_PREFIX}.123", b"half")
        store.put(f"d/{TEMPORARY_PREFIX}_7.manifest_abc", b"half")
        store.put(f"{TEMPORARY_PREFIX}.top", b"half")
        assert [info.path for info in store.list("")] == ["d/x"]
        assert list(store.names("d/")) == ["x"]
        assert list(store.names("")) == []

    def test_writing_leaves_nothing_else_behind(self, store: ObjectStore) -> None:
        store.put("x", b"1")
        store.put("x", b"2")
        store.put_if_absent("d/y", b"1")
        with raises(AlreadyExists):
            store.put_if_absent("d/y", b"2")
        store.copy_if_absent("x", "d/z")
        with raises(AlreadyExists):
            store.copy_if_absent("x", "d/z")
        store.rename_if_absent("x", "w")
        assert sorted(info.path for info in store.list("")) == ["d/y", "d/z", "w"]

    # refusing

    def test_paths_that_leave_the_root_are_refused(self, store: ObjectStore) -> None:
        store.put("ok", b"")
        for path in BAD_PATHS:
            for call in self.path_calls(store, path):
                with raises(InvalidInput):
                    call()
        assert [info.path for info in store.list("")] == ["ok"]

    def path_calls(self, store: ObjectStore, path: str) -> Iterator[Callable[[], object]]:
        yield lambda: store.get(path)
        yield lambda: store.get_range(path, 0, 1)
        yield lambda: store.head(path)
        yield lambda: store.put(path, b"")
        yield lambda: store.put_if_absent(path, b"")
        yield lambda: store.rename_if_absent("ok", path)
        yield lambda: store.rename_if_absent(path, "new")
        yield lambda: store.copy_if_absent("ok", path)
        yield lambda: store.copy_if_absent(path, "new")
        yield lambda: store.delete(path)

    def test_prefixes_that_leave_the_root_are_refused(self, store: ObjectStore) -> None:
        for prefix in ("/", "/a/", "../", "a/../b/", "a", "a//", "./"):
            with raises(InvalidInput):
                store.list(prefix)
            with raises(InvalidInput):
                store.names(prefix)

    def test_it_says_where_it_is(self, store: ObjectStore) -> None:
        assert isinstance(store, ObjectStore)
        assert store.uri
        assert store.uri in repr(store)
