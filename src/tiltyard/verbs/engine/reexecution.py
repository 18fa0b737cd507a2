"""The second stage of retry: re-executes a verb on the latest version after a retryable conflict.

The first stage, the race for a version, is the commit loop's and never looks at rows again. This one does: what the verb decides may be
different on the latest version. Only a ``RetryableConflict`` leads here, since after it nothing of ours was committed, for certain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from tiltyard.errors import ExpectedVersionMismatch, InvalidInput, RetryableConflict, TiltyardError
from tiltyard.format.manifest import check_buildable
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import Scheme
from tiltyard.interfaces import Clock
from tiltyard.options import CommitOptions
from tiltyard.transaction import observers
from tiltyard.transaction.backoff import RetryPolicy, wait_before
from tiltyard.transaction.race import CommitResult
from tiltyard.transaction.resolve import Window
from tiltyard.transaction.verify import transaction_id
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.engine.data_files import properties_with_message

Committed = tuple[CommitResult, ManifestFile]
"""What a commit came to, and the version it made."""

SHARE: Final = 8
"""Of a run, the unit of waiting is this part. Whoever met a conflict has lost a whole run already; to wait for as long again, and ever
longer, would leave it behind those who meet none."""

READ_ONCE = "The rows came as a stream, which was read: pass them again, or as a table, which can be read twice."


@dataclass(frozen=True, slots=True)
class ReexecutionPolicy:
    """Bounds of both stages of retry; ``CommitOptions`` has checked them.

    Attributes:
        race: bounds of the race for a version, in each execution.
        reexecutions: how often the verb is re-executed after a conflict.
        deadline: seconds after which nothing is begun any more, in either stage; None for no limit.
    """

    race: RetryPolicy = field(default_factory=RetryPolicy)
    reexecutions: int = 10
    deadline: float | None = None


USUAL: Final = ReexecutionPolicy()
"""That of ``CommitOptions()``."""


def commit_terms(
    commit: CommitOptions | None, message: str | None, *, replaces: bool = False
) -> tuple[dict[str, str], ReexecutionPolicy]:  # fmt: skip
    """What a verb's commit says in the history, and how often it may be retried; ``replaces`` for one that may expect a version.

    Raises:
        InvalidInput: naming the argument.
    """
    if commit is None and message is None:
        return {}, USUAL
    options = CommitOptions() if commit is None else commit
    if not isinstance(options, CommitOptions):
        raise InvalidInput(f"commit is a ty.CommitOptions, not a {type(commit).__name__}.", argument="commit")
    if options.expected_version is not None and not replaces:
        raise InvalidInput(
            "expected_version is for an overwrite and distributed.change_rows only.", argument="expected_version", advice="Leave it out."
        )
    policy = ReexecutionPolicy(RetryPolicy(options.race_retries), options.reexecutions, options.deadline)
    return properties_with_message(options.properties, message), policy


@dataclass(frozen=True, slots=True)
class Execution:
    """What one run of a verb stands on.

    Attributes:
        read: the version to build on.
        scheme: how the table's manifests are named.
        after: the conflict that made this run necessary; None in the first one.
        begun: when the first execution began, which may have written files that this one commits.
    """

    read: ManifestFile
    scheme: Scheme
    after: RetryableConflict | None
    begun: float
    _race: RetryPolicy
    _clock: Clock
    _end: float | None

    @property
    def policy(self) -> RetryPolicy:
        """Bounds for the commit loop, if it begins now."""
        if self._end is None:
            return RetryPolicy(self._race.max_retries, self._race.deadline, self.begun)
        left = max(self._end - self._clock.monotonic(), 0.0)
        return RetryPolicy(self._race.max_retries, left if self._race.deadline is None else min(left, self._race.deadline), self.begun)


class StreamSpentError(Exception):
    """A verb's sign that it would need rows again which cannot be read twice. Never leaves this module's ``run_verb``."""


def always(_: RetryableConflict) -> bool:
    return True


def run_verb(
    access: TableAccess,
    read: ManifestFile,
    scheme: Scheme,
    execute: Callable[[Execution], Committed],
    policy: ReexecutionPolicy,
    *,
    again: Callable[[RetryableConflict], bool] = always,
) -> Committed:
    """Runs a verb, and after a conflict that allows it runs it again on the newest version.

    Args:
        access: the table.
        read: the version the first run builds on.
        scheme: how the table's manifests are named.
        execute: plans, writes and commits, all on the version it is given; raises what the commit raised.
        policy: how often, and how long.
        again: whether a conflict is one that this verb can be run again after.

    Raises:
        RetryableConflict: the last one, ``executions`` telling how many runs there were.
        TiltyardError: whatever else a run ended in, which is not repeated.
    """
    access.ensure_safe()
    clock = access.runtime.clock
    first = clock.monotonic()
    end = None if policy.deadline is None else first + policy.deadline
    conflict: RetryableConflict | None = None
    executions = 0
    try:
        while True:
            executions += 1
            begun = clock.monotonic()
            try:
                check_buildable(read.manifest)  # before files are written for it; the commit looks at the one it is put on
                result, made = execute(Execution(read, scheme, conflict, first, policy.race, clock, end))
                return result if executions == 1 else replace(result, executions=executions), made
            except StreamSpentError:
                assert conflict is not None
                raise conflict.advised(READ_ONCE) from conflict
            except RetryableConflict as error:
                error.executions = executions
                if executions > policy.reexecutions or not _may_run_again(error) or not again(error):
                    raise
                conflict = error
            except TiltyardError as error:
                if conflict is not None:
                    error.add_note(f"This came up in run {executions}, after: {conflict}")
                raise
            wait = wait_before(executions - 1, (clock.monotonic() - begun) / SHARE, access.runtime)
            if end is not None and clock.monotonic() + wait >= end:
                raise conflict
            observers.rerun(conflict, executions=executions, wait=wait)
            clock.sleep(wait)
            read, scheme = _latest(access, conflict)
    finally:
        conflict = None  # its traceback knows this frame, and with it all the rows: the two would keep each other alive


def _may_run_again(conflict: RetryableConflict) -> bool:
    """Whoever names the version he expects is not helped by another one."""
    return conflict.retryable and not isinstance(conflict, ExpectedVersionMismatch)


def _latest(access: TableAccess, conflict: RetryableConflict) -> tuple[ManifestFile, Scheme]:
    """The version to re-execute on: the head, if no commit since the refused one's read version rules a re-execution out.

    Raises:
        RetryableConflict: the one given, where the table was replaced or cut back: the verb was not meant for what is there now.
        IncompatibleConflict: a commit that the re-execution would stand on does not go together with what was refused.
        HistoryUnavailable: such a commit cannot be read.
    """
    version, scheme = access.head()
    if any(winner.version > version for winner in conflict.winners):
        raise conflict
    read = access.load(version, scheme)
    if isinstance(conflict.window, Window):
        if version < conflict.window.judged.manifest.version:
            raise conflict
        judged = conflict.window.judge(access.log, version, scheme).judged
        if transaction_id(judged) != transaction_id(read):
            raise conflict
    return read, scheme
