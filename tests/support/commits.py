"""One commit under watch: a small real table, a writer whose store can be made to fail, and a judge of what is left behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa

import tiltyard as ty
from tiltyard.errors import OutcomeUnknown, TiltyardError
from tiltyard.format.manifest_file import encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import DataFile, DataFormat, DataFragment, Field, WriterVersion
from tiltyard.interfaces import ObjectStore, Runtime
from tiltyard.storage.local import LocalStore
from tiltyard.testing import Killed, ManualClock, SeededRandomness, WrapperStore
from tiltyard.testing.stores import Match, Request, T
from tiltyard.transaction.apply.next_manifest import Creation, Stamp, apply
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.operations import Append, Operation, Overwrite
from tiltyard.transaction.transaction import MESSAGE_PROPERTY, Transaction
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome, Unknown

Verb = Literal["create", "append", "overwrite"]
Mode = Literal["alone", "behind", "racing"]

VERBS: tuple[Verb, ...] = ("create", "append", "overwrite")
MODES: tuple[Mode, ...] = ("alone", "behind", "racing")
HANDLERS = ("conditional-put", "rename", "lock")

OURS, THEIRS, NEXT = (10, 11), (100,), (200,)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"row {number}" for number in ids]})


def ids_of(table: ty.Table) -> list[int]:
    return sorted(table.to_arrow(["id"])["id"].to_pylist())


def is_version(method: str, path: str) -> bool:
    """Matches the call that creates a version, whatever the handler."""
    return method in ("put", "put_if_absent", "rename_if_absent") and path.endswith(".manifest")


class NotedRandomness(SeededRandomness):
    """Chance by seed that remembers the transaction ids it gave."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.uuids: list[str] = []

    def uuid(self) -> str:
        self.uuids.append(super().uuid())
        return self.uuids[-1]


_seeds = count(1000)


def noted_runtime(seed: int | None = None) -> Runtime:
    """Time and chance of one writer; without a seed, other chance than anybody else's."""
    return Runtime(ManualClock(), NotedRandomness(next(_seeds) if seed is None else seed))


class InterruptedStore(WrapperStore):
    """Does something else right before each of the first ``times`` calls that match: the other writer who is always a bit faster."""

    def __init__(self, inner: ObjectStore, match: Match, action: Callable[[], Any], times: int = 1) -> None:
        super().__init__(inner)
        self._match = match
        self._action = action
        self._left = times

    def _call(self, method: str, path: str, request: Request[T], *, data: bytes | None = None) -> T:
        if self._left and self._match(method, path):
            self._left -= 1
            self._action()
        return request(self.inner)


def place_at(root: Path, store: ObjectStore | None = None, handler: str | None = None, runtime: Runtime | None = None) -> TableAccess:
    store = store or LocalStore(root, durability="os")
    return open_access(root, ty.Storage(handler=handler, durability="os"), store=store, runtime=runtime or noted_runtime())


def handle(root: Path, store: ObjectStore | None = None, **options: Any) -> ty.Table:
    """A handle on the newest version whose later calls go through ``store``; opening does not."""
    clean = ty.Table._open(place_at(root))
    return ty.Table(place_at(root, store, **options), clean._file, clean._scheme)


def make_template(root: Path) -> Path:
    """Two versions with rows 0 to 3; copied, since making one takes longer."""
    table = ty.Table.create(root, rows(0, 1, 2), durability="os")
    table.append(rows(3))
    return root


def copy_of(template: Path, root: Path) -> Path:
    shutil.copytree(template, root)
    return root


def files_below(root: Path, directory: str) -> set[str]:
    return {path.name for path in (root / directory).iterdir()} if (root / directory).is_dir() else set()


def has_table(root: Path) -> bool:
    return any(name.endswith(".manifest") for name in files_below(root, "_versions"))


@dataclass
class Trial:
    """One commit of ours and all that was seen of it."""

    verb: Verb
    root: Path
    runtime: Runtime = field(default_factory=noted_runtime)
    before: set[str] = field(default_factory=set)
    result_version: int | None = None
    error: BaseException | None = None
    table: ty.Table | None = None

    @property
    def transaction_id(self) -> str | None:
        random = self.runtime.random
        assert isinstance(random, NotedRandomness)
        return random.uuids[-1] if random.uuids else None

    def run(self, store: ObjectStore, handler: str) -> None:
        self.before = files_below(self.root, "data")
        try:
            if self.verb == "create":
                place = place_at(self.root, store, handler, self.runtime)
                self.table = ty.Table._create(place, rows(*OURS))
                self.result_version = self.table.version
                return
            self.table = handle(self.root, store, handler=handler, runtime=self.runtime)
            result = self.table.append(rows(*OURS)) if self.verb == "append" else self.table.overwrite(rows(*OURS))
            assert result.transaction_id == self.transaction_id
            self.result_version = result.version
        except (TiltyardError, Killed) as error:
            self.error = error

    def landed(self) -> int | None:
        """The version our transaction made, by the history; never more than one."""
        if not has_table(self.root):
            return None
        made = [entry.version for entry in ty.Table.open(self.root).history() if entry.transaction_id == self.transaction_id]
        assert len(made) <= 1, f"our transaction made versions {made}"
        return made[0] if made else None

    def observers(self) -> Iterator[Outcome]:
        """What everybody who may ask gets to hear: the handle that was in doubt, a fresh one with the version, one with the id alone."""
        unknown = self.error if isinstance(self.error, OutcomeUnknown) else None
        assert self.transaction_id is not None
        if not has_table(self.root):
            return
        fresh = ty.Table.open(self.root)
        if unknown is not None:
            if self.table is not None:
                yield _patiently(self.table, unknown.transaction_id)
            yield fresh.transactions.outcome(unknown.transaction_id, version=unknown.version)
        yield fresh.transactions.outcome(self.transaction_id)


def _patiently(table: ty.Table, transaction_id: str) -> Outcome:
    """Asks a handle whose store may still be failing until it is not."""
    for _ in range(10):
        answer = table.transactions.outcome(transaction_id)
        if not isinstance(answer, Unknown) or "cannot be read" not in answer.reason:
            break
    return answer


def judge(trial: Trial, hit: Sequence[tuple[str, str]] = ()) -> None:
    """Every promise that a single commit can break, whatever became of it. ``hit`` are the calls (method, path) that a fault befell."""
    landed = trial.landed()
    if not has_table(trial.root):
        assert trial.verb == "create"
        assert trial.result_version is None
    else:
        _judge_rows(trial, landed)
    if trial.result_version is not None:
        assert landed == trial.result_version
    elif isinstance(trial.error, OutcomeUnknown):
        _nothing_deleted(trial)
    elif isinstance(trial.error, TiltyardError):
        assert landed is None, f"reported as {trial.error.kind} but committed as {landed}"
        if not any(method == "delete" for method, _ in hit):
            _nothing_left(trial)
    _judge_outcomes(trial, landed)
    _next_writer(trial)
    _judge_outcomes(trial, landed, settled=True)


def _judge_rows(trial: Trial, landed: int | None) -> None:
    table = ty.Table.open(trial.root)
    report = table.check()
    assert report.problems == ()
    assert report.not_checked == ()
    model: list[int] = []
    for entry in reversed(table.history()):
        added = _ids_by(entry.transaction_id, entry.version, trial)
        model = sorted(added if entry.operation == "Overwrite" else [*model, *added])
        assert ids_of(ty.Table.open(trial.root, version=entry.version)) == model, f"version {entry.version}"
    assert (set(OURS) <= set(model)) == (landed is not None)


def _ids_by(transaction_id: str, version: int, trial: Trial) -> list[int]:
    if transaction_id == trial.transaction_id:
        return list(OURS)
    if trial.verb != "create" and version <= 2:
        return [0, 1, 2] if version == 1 else [3]
    return list(THEIRS)


def _nothing_deleted(trial: Trial) -> None:
    assert any(str(trial.transaction_id) in name for name in files_below(trial.root, "_transactions"))
    assert files_below(trial.root, "data") > trial.before


def _nothing_left(trial: Trial) -> None:
    assert not any(str(trial.transaction_id) in name for name in files_below(trial.root, "_transactions"))
    table = ty.Table.open(trial.root) if has_table(trial.root) else None
    assert files_below(trial.root, "data") == (_data_files(table) if table else set())


def _data_files(table: ty.Table) -> set[str]:
    versions = (ty.Table.open(table.uri, version=version) for version in table.layout.versions())
    return {file.path for version in versions for fragment in version.layout.fragments for file in fragment.files}


def _judge_outcomes(trial: Trial, landed: int | None, *, settled: bool = False) -> None:
    if trial.transaction_id is None:
        return
    answers = list(trial.observers())
    for answer in answers:
        match answer:
            case Committed(version):
                assert version == landed
            case NotCommitted():
                assert landed is None
            case Unknown():
                assert landed is None, "what stands in the history is not unknown"
    if settled and isinstance(trial.error, OutcomeUnknown):
        # Those who know which version was tried get a definite answer as soon as that version exists.
        assert not any(isinstance(answer, Unknown) for answer in answers[:-1])


def _next_writer(trial: Trial) -> None:
    if not has_table(trial.root):
        assert ty.Table.create(trial.root, rows(*NEXT), durability="os").version == 1
        return
    table = ty.Table.open(trial.root, durability="os")
    before = ids_of(table)
    assert table.append(rows(*NEXT)).version == table.layout.versions()[-1] == len(table.layout.versions())
    assert ids_of(table) == sorted([*before, *NEXT])


# ---- tables in memory: metadata alone, for what needs no rows ---------------------------------------------------------------

FIELDS = (Field("id", 0, -1, "int64"), Field("s", 1, -1, "string"))


def fragment(name: str, count: int = 1) -> DataFragment:
    """A fragment whose file need not exist as long as nobody reads rows."""
    return DataFragment(0, (DataFile(f"{name}.lance", (0, 1), (0, 1), size=10),), count)


def append(name: str = "ours") -> Append:
    return Append((fragment(name),))


def overwrite(name: str = "ours") -> Overwrite:
    return Overwrite((fragment(name),), FIELDS)


def version_count(store: ObjectStore) -> int:
    return len(VersionLog(store).versions())


def last_id(table: ty.Table) -> str:
    """The id this handle gave last: that of its last transaction."""
    random = table._access.runtime.random
    assert isinstance(random, NotedRandomness)
    return random.uuids[-1]


def memory_place(store: ObjectStore, runtime: Runtime | None = None, **options: Any) -> TableAccess:
    return open_access("memory://table", store=store, runtime=runtime or noted_runtime(), **options)


def memory_table(store: ObjectStore, *, runtime: Runtime | None = None, **options: Any) -> ty.Table:
    """A table of one version with one fragment, made through the committer as ``Table.create`` does."""
    place = memory_place(store, runtime)
    operation = Overwrite((fragment("first"),), FIELDS, config_upsert_values=options.pop("config", {}))
    transaction = Transaction(0, place.runtime.random.uuid(), operation)
    creation = Creation(DataFormat("lance", "2.2"), **options)
    _, file = place.committer.create_table(transaction, creation, Scheme.V2)
    return ty.Table(place, file, Scheme.V2)


def reopened(store: ObjectStore, *, runtime: Runtime | None = None, **options: Any) -> ty.Table:
    """A handle on the newest version, as another process would open it."""
    return ty.Table._open(memory_place(store, runtime, **options))


def plant(
    store: ObjectStore, operation: Operation, *, inline: bool = True, file: bool = True, raw: bytes | None = None, **changes: Any
) -> Transaction:
    """The next version as a foreign writer would have left it: its transaction, and whatever of the manifest it is to change."""
    log = VersionLog(store)
    found = log.head()
    assert found is not None
    base = log.load(*found).manifest
    transaction = Transaction(base.version, str(UUID(int=next(_seeds))), operation, {MESSAGE_PROPERTY: f"planted {operation.name}"})
    wire = transaction.to_bytes() if raw is None else raw
    # Only some operations can be applied; of the others their transaction is all that matters here.
    applied = operation if isinstance(operation, Append | Overwrite) else Append()
    stamp = Stamp(base.timestamp_ns + 1, STRANGER, transaction.file_name if file else "")
    manifest = replace(apply(applied, base, stamp), **changes)
    data, _ = encode_manifest_file(manifest, wire if inline else None)
    if file:
        store.put("_transactions/" + transaction.file_name, wire)
    store.put_if_absent(manifest_path(manifest.version, found[1]), data)
    return transaction


STRANGER = WriterVersion("stranger", "9.9")
