"""Lake: many tables, their names, and one transaction over several of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypeVar

from tiltyard.catalog.base_view import BaseView, UsedTables
from tiltyard.catalog.expiry import expired_among
from tiltyard.catalog.lake_values import MAIN, Cut, Isolation, Snapshot, TableHead
from tiltyard.catalog.ledger import adopt, decided_in_lake
from tiltyard.catalog.line_identity import own_head
from tiltyard.catalog.marks import Marks, branch_id_of
from tiltyard.catalog.publishing import COMMITTED, IN_DOUBT
from tiltyard.catalog.records import Records
from tiltyard.catalog.server_records import catalog_of
from tiltyard.errors import InvalidInput, NotFound, TiltyardError
from tiltyard.format.names import Scheme
from tiltyard.format.safe_text import check_text
from tiltyard.interfaces import Runtime, system_runtime
from tiltyard.lakes.branches.lake_refs import LakeBranches, LakeTags
from tiltyard.lakes.branches.table_branches import forked
from tiltyard.lakes.cleanup.orphans import find_again
from tiltyard.lakes.finishing import is_certain, load_head, recover
from tiltyard.lakes.hot_tables import HotTables
from tiltyard.lakes.lake_history import LakeHistory
from tiltyard.lakes.lake_maintenance import Keeping
from tiltyard.lakes.lake_snapshot import LakeSnapshot
from tiltyard.lakes.lake_tables import LakeTable, OpenedTable, OpenedTables
from tiltyard.lakes.lake_transaction import LakeTransaction
from tiltyard.lakes.merging.lake_diff import LakeDiff, LakeRef, diff
from tiltyard.lakes.new_tables import LakePieces
from tiltyard.lakes.opening import LakeLocation, known_author, lake_storage, open_where, settle_owner
from tiltyard.lakes.recovery.recovery_verbs import Recoverable
from tiltyard.lakes.registering import register
from tiltyard.lakes.running import run
from tiltyard.lakes.sharded.sharded_tables import opened_table
from tiltyard.lakes.spark_door import LakeDoor
from tiltyard.lakes.table_names import full_name, refuse_reserved, refuse_shard, shown, without_shards
from tiltyard.options import CommitOptions, Durability, Storage
from tiltyard.verbs.engine.access import TableAccess, open_access
from tiltyard.verbs.outcome import Committed, NotCommitted, Outcome, Unknown
from tiltyard.verbs.table_history import parse_moment

T = TypeVar("T")


class Lake(Keeping, Recoverable, LakePieces, LakeDoor):
    """Many tables under one catalog. Opened by ``Lake.open``; safe to share between threads.

    Examples:
        >>> import tempfile, pyarrow as pa, tiltyard as ty
        >>> lake = ty.Lake.open(tempfile.mkdtemp() + "/lake")
        >>> _ = lake.create_table("orders", pa.table({"id": [1]}))
        >>> _ = lake.create_table("stock", pa.table({"item": ["a"], "left": [5]}))
        >>> with lake.transaction(message="one sold") as tx:
        ...     _ = tx.table("orders").append(pa.table({"id": [2]}))
        ...     _ = tx.table("stock").update({"left": "left - 1"}, where="item = 'a'")
        >>> lake.table("stock").to_arrow().to_pylist()
        [{'item': 'a', 'left': 4}]
        >>> lake.history()[0].tables
        ('orders', 'stock')
    """

    def __init__(self, where: LakeLocation, records: Records, runtime: Runtime, author: str, branch: str = MAIN) -> None:
        self._where = where
        self.catalog = catalog_of(records, runtime)
        self.author = author
        self.branch = branch
        self.url = records.url
        self.hot, self.used = HotTables(runtime.clock), UsedTables()
        self._opened = OpenedTables()

    def __repr__(self) -> str:
        branch = f", branch={self.branch!r}" if self.branch != MAIN else ""
        return f"Lake({self.url!r}{branch})"

    def __enter__(self) -> Lake:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str] = "./lake",
        *,
        root: str | os.PathLike[str] | None = None,
        catalog: Literal["sqlite", "manifest"] | None = None,
        author: str | None = None,
        create: bool = True,
        storage: Storage | None = None,
        storage_options: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
        token: str | None = None,
    ) -> Lake:
        """Opens a lake, and makes an empty one where there is none.

        Args:
            uri: a directory (a SQLite catalog inside it), ``sqlite:///file``, ``postgresql://...``, or the object store alone, such as
                ``s3://bucket/lake``; or ``https://host:2333``, where a server has the catalog (``tiltyard serve``). That asks for
                a ``token``.
            root: where tables live, if not beside the catalog; PostgreSQL has no place of its own, so it is needed there the first time.
            catalog: ``"manifest"`` keeps the catalog of a directory in a ``__manifest`` table instead of SQLite.
            author: who commits, for the history; user and machine by default.
            create: whether a lake is made where there is none.
            storage: how the store is reached, and how much is trusted. The catalog decides about versions, so there is no ``handler``,
                ``commit_store`` or ``allowed_bases`` in it.
            storage_options: shorthand for ``Storage(options=...)``.
            durability: shorthand for ``Storage(durability=...)``.
            token: shorthand for ``Storage(token=...)``.

        Raises:
            NotFound: there is no lake, and ``create`` is false.
            OwnershipError: the root belongs to another lake, or the catalog to another root; the catalog of the root is gone.
            UnsupportedFeature: a newer release made it.
        """
        there = lake_storage(storage, storage_options, durability, token)
        runtime = there.runtime or system_runtime()
        if author is not None and not isinstance(author, str):
            raise InvalidInput(f"The author is text, not {author!r}.", argument="author")
        where, records = open_where(uri, root, catalog, there, runtime, create=create)
        try:
            lake = cls(where, records, runtime, check_text(author, "The author", "author") if author else known_author(records))
            lake._where = settle_owner(where, lake.catalog, create=create)
            recover(lake)
        except BaseException:
            records.close()
            raise
        return lake

    def close(self) -> None:
        """Closes the catalog's connections."""
        self.catalog.records.close()

    # ---- tables ----------------------------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """The names of all tables."""
        there = self.catalog.cut(self.branch).tables
        return sorted(map(shown, without_shards(there, [*there])))

    def table(self, name: str) -> LakeTable:
        """A table at its latest version. Each verb commits at once; ``transaction`` commits several tables.

        A sharded one is a ``ShardedTable``.

        Raises:
            NotFound: there is none of that name.
        """
        base = self.view()
        return opened_table(self, self._physical_table(refuse_shard(name, lambda full: base.find(full) is not None), base))

    def _physical_table(self, full: str, base: BaseView | None = None) -> LakeTable:
        """A table by its full name in the catalog, be it a shard or the anchor of some."""
        base = base or self.view()
        origin = self._head(base, shown(full))
        head = own_head(origin, self.branch, base.line) or forked(self, origin, self.branch, base.line)
        access = self.access_of(head, self.branch, origin, base.snapshot)
        if head.quarantine:
            file, _ = load_head(access, head)
        else:
            head = adopt(self.catalog, access.store, head, self.branch, base.line, origin)
            file = access.load(head.version, Scheme(head.naming), lazily=True)
        opened = LakeTable(access, file, Scheme(head.naming))
        opened.name = shown(head.name)
        return opened

    def drop_table(self, name: str) -> None:
        """Drops a table. Earlier snapshots still show it; a cleanup of the lake removes its files."""
        self.run(lambda tx: tx.drop_table(name))

    def rename_table(self, name: str, to: str) -> None:
        """Renames a table; it stays the same table."""
        self.run(lambda tx: tx.rename_table(name, to))

    def register_table(self, name: str, uri: str | os.PathLike[str]) -> LakeTable:
        """Registers an existing Lance table in the lake; its files stay where they are.

        From then on commit through the lake. A plain writer's commits are noticed and adopted, but cannot be part of its transactions.

        Raises:
            NotFound: there is no table at the URI.
            AlreadyExists: the name is taken, or the directory is a table of this lake already, under whatever spelling.
            InvalidInput: it is inside a table of this lake, or contains one.
        """
        register(self, shown(refuse_reserved(name)), uri)
        return self.table(name)

    def view(self, names: Sequence[str] = ()) -> BaseView:
        """The lake as it is now, read table by table; ``names`` (full ones) at once."""
        return BaseView(self.catalog, self.branch, self.used, names)

    def _head(self, base: BaseView | Cut, name: str) -> TableHead:
        head = base.find(full_name(name))
        if head is None:
            raise NotFound(f"There is no table {name!r} in the lake.", name=name, advice="See lake.tables().")
        return head

    @property
    def id(self) -> str:
        """The id of this lake; every table and version it makes carries it."""
        return self._where.lake

    def access_of(
        self,
        head: TableHead,
        branch: str,
        origin: TableHead | None = None,
        base: int = 0,
        transaction: str = "",
        says: str = "",
    ) -> TableAccess:
        """Where a table lives, with its versions decided in the catalog.

        Args:
            head: the table, forked if it is to be written to.
            branch: of the lake.
            origin: the table as the catalog has it, where it was forked for that.
            base: the snapshot that the writer has seen.
            transaction: the lake transaction that decides; none for single verbs.
            says: what its author says of it.
        """
        there = self.plain_access_of(head).on_branch(head.branch)
        fork = origin if origin is not None and origin.branch != head.branch else None
        outside = decided_in_lake(self.catalog, head, there.uri, branch, self.author, fork)
        store, handler = outside(there.uri, there.store)
        stamp = self.marks_of(head, branch, base, transaction, says).stamp()
        return replace(there, store=store, handler=handler, outside=outside, stamp=stamp)

    def marks_of(self, head: TableHead, branch: str, base: int = 0, transaction: str = "", says: str = "") -> Marks:
        """The marks that every commit to a table carries."""
        return Marks(self.id, head.id, head.name, branch, branch_id_of(head, branch), base, self.author, transaction, says)

    def plain_access_of(self, head: TableHead) -> TableAccess:
        """Where a table lives, as clients see it that do not know the lake."""
        return replace(self.opened(head).access)  # with a log and a committer of its own

    def opened(self, head: TableHead) -> OpenedTable:
        """What is kept of a table that was used. Its store is opened once."""
        return self._opened.at(head.location, self._where, self.catalog.runtime)

    def forget_stores(self) -> None:
        """Closes the open stores of all tables; each is opened again when it is needed."""
        self._opened.forget()

    @property
    def where(self) -> LakeLocation:
        """Where the tables live, and how they are reached."""
        return self._where

    @where.setter
    def where(self, where: LakeLocation) -> None:
        self._where = where

    @property
    def root_uri(self) -> str:
        """Where the tables live that the lake makes."""
        return self._where.root

    def uri_of(self, location: str) -> str:
        """The URI of a table's location."""
        return self._where.uri_of(location)

    def root_access(self) -> TableAccess:
        """The directory below which tables live that the lake made."""
        return open_access(self._where.root, self._where.storage, runtime=self.catalog.runtime)

    # ---- transactions ----------------------------------------------------------------------------------------------------------

    def transaction(
        self,
        *,
        isolation: Isolation = "snapshot",
        message: str | None = None,
        idempotency_key: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> LakeTransaction:
        """A transaction over any number of tables, on the lake as it is now; use it with ``with``.

        Args:
            isolation: ``"snapshot"`` refuses two writes to the same rows; ``"serializable"`` also a write that rests on something read
                which others changed.
            message: a sentence for the history.
            idempotency_key: a transaction whose key was committed before does nothing and returns the result of the first. A text of
                1 to 1,000 bytes.
            properties: text by key, kept in the history beside the message.
        """
        if self._where.lost:
            find_again(self, needed=True)
        return LakeTransaction(self, isolation, message, idempotency_key, properties, self.branch)

    def run(
        self,
        work: Callable[[LakeTransaction], T],
        *,
        isolation: Isolation = "snapshot",
        message: str | None = None,
        idempotency_key: str | None = None,
        commit: CommitOptions | None = None,
    ) -> T | None:
        """Runs a function in a transaction, again after a retryable conflict, and returns its result.

        A catalog that cannot be reached, such as a server that restarts, is waited for. Where the answer to a commit was lost, the
        catalog is asked what became of it, and the function is not run again before that is known.

        Args:
            work: called with the transaction; what it does outside of it happens each time.
            isolation: as for ``transaction``.
            message: a sentence for the history.
            idempotency_key: as for ``transaction``. Where a transaction with this key was committed before, the function is not called
                at all, and None is returned.
            commit: properties for the history; ``reexecutions``, how often the function is called again after a conflict; ``deadline``,
                without which a catalog that cannot be reached is waited for a minute. ``race_retries`` does not apply.

        Raises:
            ConflictError, ContentionError: it conflicts with other commits, too often or for good.
            StorageError: the catalog could not be reached for so long. Nothing was written.
            OutcomeUnknown: nor could it be asked what became of the commit.
        """
        if not callable(work):
            raise InvalidInput(f"run takes a function of a transaction, not {work!r}.", argument="work")
        how = commit or CommitOptions()

        def begin() -> LakeTransaction:
            return self.transaction(isolation=isolation, message=message, idempotency_key=idempotency_key, properties=how.properties)

        return run(self, work, how, begin, idempotency_key)

    def outcome(self, transaction_id: str, *, give_up: bool = False) -> Outcome:
        """What became of a transaction whose commit ended without an answer; its version is a snapshot.

        Args:
            transaction_id: ``LakeTransaction.id``, or ``CommitResult.transaction_id`` of a verb.
            give_up: aborts a transaction that is not committed, so that there is always an answer; but for one
                whose record has expired, of which the answer stays ``Unknown``.
        """
        try:
            known = self.catalog.transaction(transaction_id)
            if known is None and expired_among(self.catalog, [transaction_id]):
                return Unknown("it was committed or decided long ago, and its record has expired")
            if give_up and (known is None or known["state"] == IN_DOUBT):
                self.catalog.abort(transaction_id)
                known = self.catalog.transaction(transaction_id)
            if known is not None and known["state"] == COMMITTED and not is_certain(self, transaction_id):
                known = None
        except TiltyardError as error:
            return Unknown(f"the lake cannot be read: {error}")
        if known is None:
            return Unknown("it is not committed yet; its writer may still be at work")
        if known["state"] == COMMITTED:
            return Committed(int(known["snapshot"]))
        if known["state"] == IN_DOUBT:
            return Unknown("it was staged when the catalog was lost; give_up=True makes sure that it is never committed")
        return NotCommitted(f"it was {known['state']}")

    # ---- reading several tables ------------------------------------------------------------------------------------------------

    def snapshot(self, at: int | str | datetime | None = None) -> LakeSnapshot:
        """A snapshot of all tables: now, or at a snapshot's number, a lake-wide tag or a timestamp.

        Raises:
            NotFound: there is no such snapshot or tag.
        """
        if at is None:
            return LakeSnapshot(self, self.view())
        number, branch = self._number_of(at)
        return LakeSnapshot(self, self.catalog.cut_at(number, branch))

    def _number_of(self, at: int | str | datetime) -> tuple[int, str]:
        if isinstance(at, bool) or not isinstance(at, int | str | datetime):
            raise InvalidInput("at must be a snapshot's number, a tag or a timestamp.", argument="at")
        if isinstance(at, int):
            return at, self.branch
        if isinstance(at, str):
            tag = self.tags.find(at)
            if tag is not None:
                return tag.snapshot, tag.branch
        try:
            moment = parse_moment(at)
        except InvalidInput:
            raise NotFound(f"There is no tag {at!r} in the lake, and it is not a timestamp.", name=str(at)) from None
        return self.catalog.snapshot_before(moment, self.branch), self.branch

    def history(self, limit: int | None = None, *, before: int | None = None) -> Sequence[Snapshot]:
        """The snapshots with who changed which tables, latest first.

        They are read as they are looked at: the first of a long history costs no more than that of a short one.

        Args:
            limit: at most so many.
            before: only those before this snapshot, for the next page.
        """
        for name, value in (("limit", limit), ("before", before)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidInput(f"{name} is a number, not {value!r}.", argument=name)
        return LakeHistory(lambda limit, before: self.catalog.history(self.branch, limit, before), limit, before)

    def diff(self, before: LakeRef, after: LakeRef) -> LakeDiff:
        """Compares two snapshots: which tables, columns, settings and rows differ.

        Args:
            before: a branch, a tag, a snapshot's number on this branch, ``"branch@number"``, or a ``LakeSnapshot``.
            after: the same.

        Raises:
            NotFound: there is no such snapshot.
        """
        return diff(self, before, after)

    @property
    def tags(self) -> LakeTags:
        """Names for snapshots of the whole lake."""
        return LakeTags(self)

    @property
    def branches(self) -> LakeBranches:
        """Lines of history beside the main one, each over all tables."""
        return LakeBranches(self)

    def signed(self, author: str) -> Lake:
        """The same lake with another author of what is committed through it.

        Args:
            author: who commits, for the history.
        """
        return self._beside(check_text(author, "The author", "author"), self.branch)

    def on_branch(self, branch: str) -> Lake:
        """The same lake on one of its branches.

        Raises:
            NotFound: there is no such branch.
        """
        if not isinstance(branch, str):
            raise InvalidInput(f"A branch is named by text, not {branch!r}.", argument="branch")
        if branch != MAIN:
            self.branches[branch]
        return self._beside(self.author, branch)

    def _beside(self, author: str, branch: str) -> Lake:
        other = Lake(self._where, self.catalog.records, self.catalog.runtime, author, branch)
        other._opened, other.hot, other.used = self._opened, self.hot, self.used
        other.catalog.queues = self.catalog.queues
        return other
