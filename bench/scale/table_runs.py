"""Many writers of one table on an object store, in virtual time, through the real commit loop: ``Committer``, ``Turns``, ``VersionLog``.

A writer uploads a small data file and commits it, again and again. Only the bytes of data files are made up: transactions, manifests, the
rebase, the queue and its groups are what users get.
"""

from __future__ import annotations

import time as real_time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from bench.scale.virtual_stores import Conditions, Site, VirtualStore
from bench.scale.virtual_time import VirtualEvent, VirtualTime
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.values import DataFile, DataFormat, DataFragment, Field, WriterVersion
from tiltyard.interfaces import Runtime
from tiltyard.storage.handlers import ConditionalPutHandler
from tiltyard.storage.thread_queue import ThreadPlace, ThreadQueue
from tiltyard.testing.clocks import SeededRandomness
from tiltyard.transaction.apply.next_manifest import Creation
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.commit import Committer
from tiltyard.transaction.group import made_by
from tiltyard.transaction.log import VersionLog
from tiltyard.transaction.operations import Append, Overwrite
from tiltyard.transaction.transaction import Transaction

WRITER: Final = WriterVersion("tiltyard", "simulated")
FIELDS: Final = (Field("id", 0, -1, "int64"), Field("text", 1, -1, "string"))
DATA_BYTES: Final = 2000
"""What a file of a few rows takes."""
KEPT: Final = 256
"""Decoded versions to keep at hand."""


@dataclass(frozen=True, slots=True)
class Way:
    """How writers of one table come to their commits.

    Attributes:
        name: what the page calls it.
        queues: how many queues they form; 0 for none, so that everybody races.
        alone: whether each commit is a version of its own, as those of merges and deletes are.
        shards: over how many tables they are spread.
        hops: messages between a writer and whoever commits for it.
    """

    name: str
    queues: int = 0
    alone: bool = False
    shards: int = 1
    hops: int = 0


DIRECT: Final = Way("direct")
QUEUED: Final = Way("queued", queues=1, alone=True, hops=2)
MACHINES: Final = Way("16 machines", queues=16)
GROUPED: Final = Way("committer", queues=1, hops=2)
SHARDED: Final = Way("16 shards, direct", shards=16)
BOTH: Final = Way("16 shards, committer", queues=1, shards=16, hops=2)
WAYS: Final = (DIRECT, QUEUED, MACHINES, GROUPED, SHARDED, BOTH)


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        way, writers: which.
        commits: how many were acknowledged.
        versions: how many versions they made.
        seconds: of virtual time.
        waits: seconds from the upload to the answer, of those that were acknowledged.
        unfinished: the same, so far, of those that were not when the run ended.
        requests: by kind.
        bytes_written: to the store.
        failed: how many gave up.
        processor: seconds of real time that a commit took, by the clock of this machine; the only figure that differs from run to run.
    """

    way: str
    writers: int
    commits: int = 0
    versions: int = 0
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    unfinished: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    bytes_written: int = 0
    failed: int = 0
    processor: float = 0.0

    @property
    def rate(self) -> float:
        return self.commits / self.seconds if self.seconds else 0.0

    @property
    def starved(self) -> bool:
        """Whether some wait longer than most who were acknowledged: then p99 is a lower bound."""
        return len(self.unfinished) > self.commits / 100 and max(self.unfinished, default=0.0) >= self.percentile(0.99)

    def percentile(self, part: float) -> float:
        """Of all waits, those included that had not ended."""
        ordered = sorted([*self.waits, *self.unfinished])
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0


class DecodedOnce(VersionLog):
    """Reads as ever, but decodes the same bytes once for all writers: what comes out depends on nothing else."""

    def __init__(self, store: VirtualStore, decoded: dict[str, tuple[bytes, ManifestFile]]) -> None:
        super().__init__(store)
        self._decoded = decoded

    def _read(self, version: int, scheme: Scheme, *, check: bool, lazily: bool = False) -> ManifestFile:
        path = manifest_path(version, scheme)
        data = self._ahead.pop(path, None) or self.store.get(path)
        known = self._decoded.get(path)
        if known is None or known[0] is not data:
            self._ahead[path] = data
            known = self._decoded[path] = (data, super()._read(version, scheme, check=True))
            while len(self._decoded) > KEPT:
                del self._decoded[next(iter(self._decoded))]
        return known[1]


class VirtualQueue(ThreadQueue):
    """The queue of a process, in virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self.time = time

    def place(self, transaction_id: str, since: float) -> VirtualPlace:
        return VirtualPlace(self, transaction_id, since)


class VirtualPlace(ThreadPlace):
    """One commit before the table."""

    def __init__(self, queue: VirtualQueue, transaction_id: str, since: float) -> None:
        super().__init__(queue, transaction_id, since)
        self._time = queue.time
        self._called: Any = VirtualEvent(queue.time)

    def _now(self) -> float:
        return self._time.seconds


class SimulatedRun(ABC):
    """Writers in virtual time, and what comes of them."""

    def __init__(self, name: str, writers: int, seed: int, conditions: Conditions) -> None:
        self.seed = seed
        self.outcome = Outcome(name, writers)
        self.time = VirtualTime()
        self.site = Site(self.time, conditions, seed)
        self._since: dict[int, float] = {}

    @abstractmethod
    def _writer(self, number: int, most: int) -> Callable[[], None]:
        """What a writer does until so many commits were acknowledged."""

    @abstractmethod
    def _check(self) -> None:
        """Fails if something that was acknowledged is not there, or is there twice."""

    def run(self, commits: int, seconds: float) -> Outcome:
        """Has all writers go on until so many commits were acknowledged, or so many seconds went by.

        Raises:
            AssertionError: something that was acknowledged is not there, or is there twice.
        """
        begun, start = real_time.process_time(), self.time.seconds
        random = Random(f"{self.seed} begin")
        for number in range(self.outcome.writers):
            self.time.begin(self._writer(number, commits), after=random.uniform(0.0, self.site.conditions.put))
        self.time.run(until=start + seconds)
        outcome = self.outcome
        outcome.seconds = self.time.seconds - start
        outcome.unfinished = [self.time.seconds - since for since in self._since.values()]
        outcome.requests, outcome.bytes_written = self.site.requests, self.site.bytes_written
        outcome.processor = (real_time.process_time() - begun) / max(outcome.commits, 1)
        self._check()
        return outcome


class TableRun(SimulatedRun):
    """One run: a table for each shard, and writers before them."""

    def __init__(self, way: Way, writers: int, *, seed: int, conditions: Conditions, fragments: int = 1) -> None:
        super().__init__(way.name, writers, seed, conditions)
        self.way = way
        self.stores = [VirtualStore(self.site, f"s3://simulated/{number}") for number in range(way.shards)]
        self._queues = [[VirtualQueue(self.time) for _ in range(way.queues)] for _ in self.stores]
        self._decoded: dict[str, dict[str, tuple[bytes, ManifestFile]]] = {store.uri: {} for store in self.stores}
        self.acknowledged: list[tuple[int, str]] = []
        """Shard and id of each transaction that was acknowledged."""
        self._first = [self._create(store, fragments) for store in self.stores]
        self.site.requests.clear()
        self.site.bytes_written = 0

    def _create(self, store: VirtualStore, fragments: int) -> ManifestFile:
        made: list[ManifestFile] = []
        files = tuple(self.fragment(f"first-{number}") for number in range(fragments))

        def body() -> None:
            transaction = Transaction(0, SeededRandomness(store.uri).uuid(), Overwrite(files, FIELDS))
            committer = self._committer(store, 0, "first")
            made.append(committer.create_table(transaction, Creation(DataFormat(), False), Scheme.V2)[1])

        self.time.begin(body)
        self.time.run()
        return made[0]

    @staticmethod
    def fragment(name: str) -> DataFragment:
        return DataFragment(0, (DataFile(f"{name}.lance", (0, 1), (0, 1), size=DATA_BYTES),), 10)

    def _committer(self, store: VirtualStore, shard: int, name: str) -> Committer:
        queues = self._queues[shard]
        queue = queues[int(name) % len(queues)] if queues and name != "first" else None
        runtime = Runtime(self.time, SeededRandomness(f"{self.seed} {shard} {name}"))
        log = DecodedOnce(store, self._decoded[store.uri])
        return Committer(log, ConditionalPutHandler(), runtime, WRITER, queue=queue, look_seconds=store.look_seconds)

    def _writer(self, number: int, most: int) -> Callable[[], None]:
        committers = {shard: self._committer(store, shard, str(number)) for shard, store in enumerate(self.stores)}
        at = dict(enumerate(self._first))
        random, policy = SeededRandomness(f"{self.seed} writer {number}"), RetryPolicy(10**9 if self.way.alone else None)

        def body() -> None:
            count = 0
            while self.outcome.commits < most:
                shard, count = random.randrange(len(self.stores)), count + 1
                self._since[number] = self.time.seconds
                name = f"{number}-{count}"
                self.stores[shard].put_later(f"data/{name}.lance", b"\0" * DATA_BYTES)
                if self.way.hops:
                    self.time.pause(self.way.hops * self.site.conditions.hop)
                transaction = Transaction(at[shard].manifest.version, random.uuid(), Append((self.fragment(name),)))
                _, at[shard] = committers[shard].commit(transaction, at[shard], Scheme.V2, policy)
                self._acknowledge(number, shard, transaction.uuid)
                if self.outcome.commits >= most:
                    self.time.end()

        return body

    def _acknowledge(self, number: int, shard: int, transaction_id: str) -> None:
        self.outcome.commits += 1
        self.outcome.waits.append(self.time.seconds - self._since.pop(number))
        self.acknowledged.append((shard, transaction_id))

    def _check(self) -> None:
        """Every transaction that was acknowledged is in one version, and the last version has all files."""
        for shard, store in enumerate(self.stores):
            log = VersionLog(_Plain(store))
            head = log.head()
            assert head is not None
            there: Counter[str] = Counter()
            for version in range(2, head[0] + 1):
                there.update(made_by(log.transaction_of(log.peek(version, Scheme.V2))))
            told = [transaction_id for where, transaction_id in self.acknowledged if where == shard]
            wrong = [transaction_id for transaction_id in told if there[transaction_id] != 1]
            assert not wrong, f"{len(wrong)} of {len(told)} acknowledged commits are not there once"
            assert max(there.values(), default=1) == 1, "a transaction was committed twice"
            latest = log.load(head[0], Scheme.V2)
            assert len(latest.manifest.fragments) == len(self._first[shard].manifest.fragments) + there.total()
            self.outcome.versions += head[0] - 1


class _Plain(VirtualStore):
    """The same objects, in no time and uncounted, for whoever looks after a run."""

    def __init__(self, store: VirtualStore) -> None:
        super().__init__(store.site, store.uri)
        self.objects, self._names = store.objects, store._names

    def _request(self, kind: str, answer: Callable[[], Any], size: int = 0) -> Any:
        return answer()
