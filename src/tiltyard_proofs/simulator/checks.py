"""After a run: every promise that the store, the notes of the run and the model can show to be broken."""

from __future__ import annotations

from collections.abc import Sequence

from tiltyard.errors import CorruptTable
from tiltyard.format.flags import Feature
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile
from tiltyard.format.names import HINT_PATH, all_versions, decode_hint
from tiltyard.format.roaring import decode_roaring
from tiltyard.format.values import IndexMetadata
from tiltyard.interfaces import Runtime
from tiltyard.storage.handlers import ConditionalPutHandler
from tiltyard.testing.clocks import ManualClock, SeededRandomness
from tiltyard.transaction.footprint import SINGLETONS
from tiltyard.transaction.group import made_by
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.engine.access import TableAccess
from tiltyard.verbs.outcome import Committed, NotCommitted, outcome_of
from tiltyard_proofs.simulator.actors import Reading, files_of
from tiltyard_proofs.simulator.index_intentions import column_of
from tiltyard_proofs.simulator.model import KEY, Rows, State, Violation
from tiltyard_proofs.simulator.stepping import Actor
from tiltyard_proofs.simulator.world import Attempt, Landing, World


def check_run(
    world: World, actors: Sequence[Actor], readings: Sequence[Reading], *, cleaner: int | None = None, calm: bool = False
) -> None:
    """Raises ``Violation`` for the first broken promise.

    Args:
        world: what is left.
        actors: who took part.
        readings: what readers saw.
        cleaner: the number of the actor who may remove versions.
        calm: no fault happened, so nothing may be left behind.
    """
    for actor in actors:
        if actor.crash is not None:
            if isinstance(actor.crash, Violation):
                raise actor.crash
            raise Violation(f"{actor.name} crashed: {type(actor.crash).__name__}: {actor.crash}") from actor.crash
    if world.problems:
        raise Violation(world.problems[0])
    history = _history(world, cleaner)
    landed = _transactions(history)
    _check_outcomes(world, landed)
    states = _check_versions(world, history)
    _check_there(world, history, cleaner)
    _check_readings(world, readings, states)
    _check_unknown(world, landed)
    _check_hint(world)
    if calm:
        for attempt in world.attempts.values():
            if attempt.outcome == "unknown":
                raise Violation(f"P6: {_name(attempt)} is said to be unknown, though nothing failed")
        _check_tidy(world, history)


def _check_hint(world: World) -> None:
    """I9: the hint names a version that was made."""
    hint = world.store._objects.get(HINT_PATH)
    made = max([*world.states, *(landing.version for landing in world.store.landings)])
    if hint is not None and not 0 < (decode_hint(hint[0]) or 0) <= made:
        raise Violation(f"I9: the hint says {hint[0]!r}, the newest version ever made is {made}")


# ---- history ---------------------------------------------------------------------------------------------------------------


def _history(world: World, cleaner: int | None) -> dict[int, tuple[Landing, ManifestFile, Transaction]]:
    """The versions made in the run, each made once and one after the other."""
    found: dict[int, tuple[Landing, ManifestFile, Transaction]] = {}
    for place, landing in enumerate(world.store.landings):
        if landing.replaced:
            raise Violation(f"P2: version {landing.version} was written over")
        try:
            file = world.manifest(landing.path, landing.data)
        except CorruptTable as error:
            raise Violation(f"I2: {error}") from error
        assert file.transaction is not None
        transaction = Transaction.from_bytes(file.transaction)
        removed_by = world.store.removed_by.get(place)
        if landing.version <= landing.head:
            before = found.get(landing.version)
            if before is None or before[0].data != landing.data:  # else the same request, sent again since its answer was lost
                _check_late(world, landing, transaction, removed_by)
            continue
        if landing.version != landing.head + 1:
            raise Violation(f"P2: version {landing.version} was made when {landing.head} was the head")
        if removed_by not in (None, cleaner):
            raise Violation(f"P1: version {landing.version} was removed by actor {removed_by}")
        found[landing.version] = (landing, file, transaction)
    return found


def _check_late(world: World, landing: Landing, transaction: Transaction, removed_by: int | None) -> None:
    """A version under a number that a cleanup had set free lies where nobody looks, so nobody may be told that it was committed.

    Who notices takes it back. Who dies before that, or cannot tell whether it is so, leaves it behind: without a mark outside of the
    versions themselves nothing can be done about that.
    """
    attempt = world.attempts.get(transaction.uuid)
    told = [world.attempts[uuid].outcome for uuid in made_by(transaction) if uuid in world.attempts]
    if attempt is None or "committed" in told:
        raise Violation(f"P1: version {landing.version} was acknowledged, but made when {landing.head} was the head already")
    if attempt.outcome == "refused" and removed_by is None and not attempt.troubled:
        raise Violation(f"P2: version {landing.version} was made when {landing.head} was the head, refused and left behind")
    attempt.late = True
    world.late += 1


def _transactions(history: dict[int, tuple[Landing, ManifestFile, Transaction]]) -> dict[str, int]:
    landed: dict[str, int] = {}
    for version, (_, _, transaction) in history.items():
        for uuid in made_by(transaction):
            if uuid in landed:
                raise Violation(f"I7: transaction {uuid} made versions {landed[uuid]} and {version}")
            landed[uuid] = version
    return landed


def _check_outcomes(world: World, landed: dict[str, int]) -> None:
    for uuid, version in landed.items():
        if uuid not in world.attempts:
            raise Violation(f"P4: version {version} was made by a transaction nobody tried")
    for attempt in world.attempts.values():
        found = landed.get(attempt.uuid)
        if attempt.outcome == "committed" and found != attempt.version:
            raise Violation(f"P1: {_name(attempt)} was acknowledged as version {attempt.version}, history has {found}")
        if attempt.outcome == "refused" and found is not None:
            raise Violation(f"P6: {_name(attempt)} was refused ({attempt.error}) but is version {found}")


def _name(attempt: Attempt) -> str:
    return f"{attempt.intention} of actor {attempt.actor}"


# ---- versions --------------------------------------------------------------------------------------------------------------


def _check_versions(world: World, history: dict[int, tuple[Landing, ManifestFile, Transaction]]) -> dict[int, State]:
    """The rows and settings of every version equal those of the committed intentions, one after the other."""
    states = dict(world.states)
    highest = -1
    for version, (_, file, transaction) in history.items():
        attempt, state = world.attempts[transaction.uuid], states[version - 1]
        try:
            for uuid in made_by(transaction):
                attempt = world.attempts[uuid]
                if transaction.operation.name != attempt.operation.name:
                    raise Violation(f"P4: it was committed as {transaction.operation.name}")
                state = attempt.effect.on(state, states.__getitem__)
            states[version] = state
            _compare(world, file.manifest, states[version])
            highest = max(highest, _check_fragments(file.manifest, highest))
            _check_indices(world, file.manifest)
        except Violation as error:
            raise Violation(f"{error} (version {version}, {_name(attempt)}, read {attempt.read_version})") from error
    return states


def _compare(world: World, manifest: Manifest, state: State) -> None:
    columns = tuple(field.name for field in manifest.fields)
    if columns != state.columns:
        raise Violation(f"I3: the columns are {columns}, not {state.columns}")
    rows = world.rows_of(manifest)
    if rows != state.rows:
        raise Violation(f"I3: {_difference(rows, state)}")
    if dict(manifest.config) != dict(state.config):
        raise Violation(f"I3: the config is {dict(manifest.config)}, not {dict(state.config)}")
    bases = {base.name or "" for base in manifest.base_paths}
    if bases != state.bases or len(bases) != len(manifest.base_paths):
        raise Violation(f"I3: the bases are {sorted(bases)}, not {sorted(state.bases)}")
    if any(field.primary_key for field in manifest.fields):
        keys = [row[KEY] for row in rows.values()]
        if len(set(keys)) != len(keys):
            doubled = next(key for key in keys if keys.count(key) > 1)
            raise Violation(f"I4: key {doubled} has two live rows")
    indices = _indices(manifest)
    names = {index.name: column.name for index in indices if (column := column_of(index, manifest.fields)) is not None}
    if names != dict(state.indices) or len(indices) != len(names):
        raise Violation(f"I3: the indices are {sorted(index.name for index in indices)}, not {sorted(state.indices)}")


def _difference(rows: Rows, state: State) -> str:
    for rid in sorted(rows.keys() | state.rows.keys()):
        if rid not in rows:
            return f"row {rid} {dict(state.rows[rid])} is missing"
        if rid not in state.rows:
            return f"row {rid} {rows[rid]} should not be there"
        if rows[rid] != state.rows[rid]:
            return f"row {rid} is {rows[rid]}, not {dict(state.rows[rid])}"
    return "nothing"


def _check_fragments(manifest: Manifest, highest: int) -> int:
    ids = manifest.fragments.ids()
    if len(set(ids)) != len(ids):
        raise Violation(f"I6: fragment ids {ids} are not unique")
    mark = manifest.max_fragment_id
    if mark is None or (ids and max(ids) > mark):
        raise Violation(f"I6: fragment {max(ids)} is above the mark {mark}")
    if mark < highest:
        raise Violation(f"I6: the mark fell from {highest} to {mark}")
    files = [file.path for fragment in manifest.fragments for file in fragment.files]
    if len(set(files)) != len(files):
        raise Violation(f"I6: the data files {files} are not named once each")
    for fragment in manifest.fragments:
        if fragment.live_rows <= 0:
            raise Violation(f"I5: fragment {fragment.id} has no live row")
        file = fragment.deletion_file
        if file is not None and not manifest.reader_flags & Feature.DELETION_FILES:
            raise Violation("I2: there are deletion files, and the flags do not say so")
    return mark


def _indices(manifest: Manifest) -> list[IndexMetadata]:
    if not manifest.index_section:
        return []
    return [index for index in decode_indices(manifest, "simulated") if index.name not in SINGLETONS]


def _check_indices(world: World, manifest: Manifest) -> None:
    """An index finds, for every row of the fragments it covers, the value the row has."""
    for index in _indices(manifest):
        column = column_of(index, manifest.fields)
        entries = world.index_values.get(index.uuid)
        if column is None or entries is None:
            raise Violation(f"I3: index {index.name} is on a column that is not there")
        covered = decode_roaring(index.fragment_bitmap or b"", index.name)
        by_row_id = index.uuid in world.by_row_id
        for fragment in manifest.fragments:
            if fragment.id not in covered:
                continue
            ids = world.row_ids(fragment) if by_row_id else []
            for row in world.live(fragment, manifest.fields):
                place: object = ids[row.offset] if by_row_id else (fragment.id, row.offset)
                if place not in entries:
                    raise Violation(f"I3: index {index.name} covers fragment {fragment.id} but does not know row {row.rid}")
                if entries[place] != row.row[column.name]:
                    raise Violation(f"I3: index {index.name} has {entries[place]!r} for row {row.rid}, which has {row.row[column.name]!r}")


# ---- what is there now -----------------------------------------------------------------------------------------------------


def _check_there(world: World, history: dict[int, tuple[Landing, ManifestFile, Transaction]], cleaner: int | None) -> None:
    """I1, I2, I9: versions without a gap but those a cleanup may leave, the newest among them, and all their files."""
    there = [entry.version for entry in all_versions(world.store.names(VERSIONS))]
    head = max([*world.states, *history])
    if not there or there[-1] != head:
        raise Violation(f"P1: the newest version is {there[-1:]}, not {head}")
    removed = {-number if number < 0 else world.store.landings[number].version for number in world.store.removed_by}
    for version in sorted(set(range(1, head)) - set(there)):
        # A cleanup goes by time stamps, which a jump of the clock puts out of order; so it may leave gaps of its own.
        if version not in removed:
            raise Violation(f"I1: version {version} is missing, and nobody cleaned it up")
    gone = {world.store.landings[place].version for place in world.store.removed_by if place >= 0}
    for version, (_, file, _) in history.items():
        if version in gone:
            continue
        for path in files_of(file.manifest):
            if not world.store.has(path) and not path.startswith(TRANSACTIONS):
                raise Violation(f"I2: version {version} names {path}, which is gone")


def _check_readings(world: World, readings: Sequence[Reading], states: dict[int, State]) -> None:
    # Under a number that was cleaned up, a late writer's version can be seen until that writer has noticed.
    retaken = {landing.version for landing in world.store.landings if landing.version <= landing.head}
    for reading in readings:
        if reading.version in retaken:
            continue
        if reading.version < reading.acknowledged:
            raise Violation(f"P3: a reader saw version {reading.version} after {reading.acknowledged} had been acknowledged")
        if reading.version not in states:
            raise Violation(f"P3: a reader saw version {reading.version}, which is none")
        if reading.rows != states[reading.version].rows:
            raise Violation(f"P3: a reader saw other rows in version {reading.version} than it has")


def _check_unknown(world: World, landed: dict[str, int]) -> None:
    """I12: whoever asks for an unknown outcome later hears what history says."""
    runtime = Runtime(ManualClock(), SeededRandomness(0))
    for attempt in world.attempts.values():
        if attempt.outcome != "unknown" or attempt.late:
            continue
        version = landed.get(attempt.uuid)
        for tried in (attempt.version, None):
            answer = outcome_of(TableAccess(world.store.uri, world.store, ConditionalPutHandler(), runtime), attempt.uuid, tried)
            if isinstance(answer, Committed) and answer.version != version:
                raise Violation(f"I12: {_name(attempt)} is said to be version {answer.version}, history has {version}")
            if isinstance(answer, NotCommitted) and version is not None:
                raise Violation(f"I12: {_name(attempt)} is said not to be committed, but is version {version}")


def _check_tidy(world: World, history: dict[int, tuple[Landing, ManifestFile, Transaction]]) -> None:
    """Where nothing failed, a transaction that was refused leaves no file of the commit loop behind, nor offered rows one too many."""
    named = {path for _, file, _ in history.values() for path in files_of(file.manifest)}
    for path in world.store.written:
        if path.startswith("data/") and path not in named and world.store.has(path):
            raise Violation(f"I8: {path}, written for those who had offered rows, was left behind")
    refused = {attempt.uuid for attempt in world.attempts.values() if attempt.outcome == "refused"}
    for path in world.store.objects():
        if (path.startswith(TRANSACTIONS) and path.removesuffix(".txn").partition("-")[2] in refused) or "/.tmp" in path:
            raise Violation(f"I8: {path} was left behind")
