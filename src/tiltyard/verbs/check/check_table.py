"""Is this table sound? Every invariant that its files alone can show, with the file and the version where it breaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.format.flags import Feature
from tiltyard.format.legacy import has_sure_counts
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import HINT_PATH, VersionName, decode_hint, parse_manifest_name
from tiltyard.format.row_ids import decode_row_ids
from tiltyard.format.values import TOMBSTONE, DataFile, DataFragment
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction.head import read_floor
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS, VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.check.check_data import DataCheck
from tiltyard.verbs.check.check_indices import lost_columns, wrong_answers
from tiltyard.verbs.engine.access import Place, main_place
from tiltyard.verbs.engine.blobs import blob_directory, missing_blobs
from tiltyard.verbs.engine.pylance import lance_errors, open_dataset
from tiltyard.verbs.engine.row_deletion import check_deletions, dataset_at, read_deletions
from tiltyard.verbs.engine.verify_files import Bases, FileAt, Progress
from tiltyard.verbs.keys.primary_keys import KnownKeys, check_comparable, in_words, key_batches, primary_key_of
from tiltyard.verbs.table_refs import Branches, Tags


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant."""

    invariant: str
    text: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found.

    Attributes:
        uri: the table.
        versions: how many versions were looked at.
        files: how many distinct files they name.
        problems: broken invariants; none in a sound table.
        orphans: files that no version names: of failed attempts, or of commits under way.
        not_checked: invariants that could not be checked here, and why.
        data: whether files were read and compared with their digests.
        verified: how many were.
        unverified: how many have no digest: others wrote them.
    """

    uri: str
    versions: int
    files: int
    problems: tuple[Problem, ...]
    orphans: tuple[str, ...]
    not_checked: tuple[str, ...] = ()
    data: bool = False
    verified: int = 0
    unverified: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class _Findings:
    problems: list[Problem] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    pylance_sees: bool = True
    """Whether pylance can open what lies in this store."""
    by_directory: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """All files there are; those of blobs have a directory for each data file."""
    orphans_known: bool = True
    """Whether all was read that can name a file."""
    deletions_read: set[tuple[str, int, int]] = field(default_factory=set)
    transactions: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    """Files in bases that were asked for."""
    referred: set[int] = field(default_factory=set)
    """Versions that a tag or a branch refers to: a foreign cleanup leaves them, whatever it takes around them."""
    data: DataCheck | None = None

    def add(self, invariant: str, text: str, version: int | None = None) -> None:
        self.problems.append(Problem(invariant, text, version))


def check_table(
    place: Place, versions: Iterable[int] | None = None, *, data: bool = False, progress: Progress | None = None
) -> CheckReport:
    """Checks I1, I2 and I4 to I9 of the promises, that pylance sees the same rows (I13), and that indices agree with them.

    Args:
        place: the table.
        versions: which; all by default.
        data: whether every file is read and compared with its digest (I14), and every row with the indices.
        progress: is told how many of how many bytes were read.

    Raises:
        NotFound: there is no table, or no such version.
    """
    place.head()
    findings = _Findings()
    hint = _hint(place)  # before the versions: one that is committed meanwhile is then no contradiction
    there = place.log.versions()
    wanted = set(versions) if versions is not None else {name.version for name in there}
    missing = wanted - {name.version for name in there}
    if missing:
        raise NotFound(f"{place.store.uri} has no version {min(missing)}.", name=str(min(missing)))
    _gapless(place, there, findings)
    if hint is not None and hint > there[-1].version:
        findings.add("I9", f"the hint names version {hint}, the latest is {there[-1].version}")
    present = _present(place.store)
    findings.by_directory = {
        directory: tuple(paths) for directory, paths in itertools.groupby(sorted(present), lambda path: path[: path.rfind("/") + 1])
    }
    _detached(place, present, findings)
    findings.data = DataCheck(place) if data else None
    manifests = [_one_version(place, name, present, findings) for name in there if name.version in wanted]
    if _is_intact(findings, progress):
        latest = manifests[-1] if manifests else None
        counted = manifests if place.limits is None else [latest]  # a child for each version would take long
        if len(counted) < len(manifests):
            findings.not_checked.append("I13 for older versions: each would be counted in a process of its own")
        for manifest in filter(None, counted):
            _pylance_agrees(place, manifest, findings)
        if latest is not None:
            _indices_agree(place, latest, data, findings)
            _unique_keys(place, latest, findings)
            _pylance_validates(place, latest, findings)
            _blobs_are_there(place, latest, present, findings)
    _leave_out_cleaned_up(place, findings)
    complete = wanted == {name.version for name in there} and not findings.problems and findings.orphans_known
    orphans = sorted(present - findings.named) if complete else []
    report = CheckReport(
        place.store.uri, len(wanted), len(findings.named), tuple(findings.problems), tuple(orphans), tuple(findings.not_checked)
    )
    if findings.data is None:
        return report
    return replace(report, data=True, verified=findings.data.verified, unverified=findings.data.unverified)


def _leave_out_cleaned_up(place: Place, findings: _Findings) -> None:
    """What a cleanup took while it was looked at proves nothing; a version that is still there does, and so does a lost head."""
    if not findings.problems:
        return
    there = {name.version for name in place.log.versions()}
    gone = {one.version for one in findings.problems if one.version is not None and one.version < max(there, default=0)} - there
    if gone:
        findings.problems = [one for one in findings.problems if one.version not in gone]
        findings.not_checked.append(f"versions {min(gone)} to {max(gone)}: a cleanup took them meanwhile")
        findings.orphans_known = False


def _is_intact(findings: _Findings, progress: Progress | None) -> bool:
    """I14. What is known to be damaged is not given to pylance, which may die of it."""
    check = findings.data
    if check is None:
        return True
    check.run(progress)
    for text, version in check.damaged:
        findings.add("I14", text, version)
    if check.damaged:
        findings.not_checked.append("I4, I13: rows are not read while files are damaged")
    return not check.damaged


def _gapless(place: Place, there: list[VersionName], findings: _Findings) -> None:
    """I1. Cleanup keeps tagged versions and fork points, so a gap above those alone is in order, and any gap below its floor.

    A foreign cleanup goes by age. Where the clocks of writers differed it leaves older versions below younger ones that it takes: then a
    gap proves nothing.
    """
    numbers = [name.version for name in there]
    floor = read_floor(place.store).version
    findings.referred = _referred(place)
    kept = {number for number in numbers if number < floor} | findings.referred
    for before, after in itertools.pairwise(numbers):
        if after == before + 1 or all(number in kept for number in numbers[: numbers.index(after)]):
            continue
        text = f"versions {before + 1} to {after - 1} are missing"
        if _clocks_differed(place, there):
            findings.not_checked.append(f"I1: {text}; the clocks of writers differed, so a cleanup by age may have taken them")
        else:
            findings.add("I1", text)


def _referred(place: Place) -> set[int]:
    """Versions of this line of history that tags name or branches begin at."""
    main = main_place(place)
    tags = {tag.version for tag in Tags(main).values() if tag.branch == place.branch}
    return tags | {branch.parent_version for branch in Branches(main).values() if branch.parent_branch == place.branch}


def _clocks_differed(place: Place, there: list[VersionName]) -> bool:
    """Whether a version is older than the one below it."""
    stamps = []
    for name in there:
        try:
            stamps.append(place.log.peek(name.version, name.scheme).manifest.timestamp_ns)
        except TiltyardError:
            continue  # reported where the version is looked at
    return any(after < before for before, after in itertools.pairwise(stamps))


def _hint(place: Place) -> int | None:
    try:
        return decode_hint(place.store.get(HINT_PATH))
    except NotFound:
        return None


def _present(store: ObjectStore) -> set[str]:
    """All files of the kinds a version can name."""
    return {info.path for prefix in ("data/", "_deletions/", "_indices/", TRANSACTIONS) for info in store.list(prefix)}


def _detached(place: Place, present: set[str], findings: _Findings) -> None:
    """Versions beside the line of history: what they name is no orphan. Nothing else is asked of them."""
    for name in place.store.names(VERSIONS):
        parsed = parse_manifest_name(name)
        if parsed is None or not parsed.detached:
            continue
        try:
            manifest = decode_manifest_file(place.store.get(VERSIONS + name), source=VERSIONS + name, version=parsed.version).manifest
            directories = tuple(f"_indices/{index.uuid}/" for index in decode_indices(manifest, name))
        except TiltyardError as error:
            findings.not_checked.append(f"I8: detached version {parsed.version} cannot be read: {error}")
            findings.orphans_known = False
            continue
        if manifest.transaction_file:
            findings.named.add(TRANSACTIONS + manifest.transaction_file)
        for fragment in manifest.fragments:
            for file in fragment.files:
                _claim_data(file, findings)
            if fragment.deletion_file is not None:
                findings.named.add(fragment.deletion_file.path(fragment.id))
        findings.named.update(path for path in present if path.startswith(directories))
    findings.named &= present


def _claim_data(file: DataFile, findings: _Findings) -> None:
    """A data file and the blobs beside it belong to somebody."""
    if file.base_id is None and f"data/{file.path}" not in findings.named:
        findings.named.add(f"data/{file.path}")
        findings.named.update(findings.by_directory.get(blob_directory(file.path), ()))


def _one_version(place: Place, name: VersionName, present: set[str], findings: _Findings) -> Manifest | None:
    version = name.version
    try:
        # What the file says of itself is compared with all of its bytes, where it says it.
        file = place.trusted(VersionLog(place.store, verify=True).load(version, name.scheme))
    except TiltyardError as error:
        findings.add("I2", str(error), version)
        return None
    manifest = file.manifest
    transaction = _transaction(place, file, findings)
    if manifest.transaction_file:
        path = TRANSACTIONS + manifest.transaction_file
        # pylance's cleanup takes the transaction file of a version that a branch begins at; the version has a copy.
        if path in present or file.transaction is None or version not in findings.referred:
            _require(path, present, findings, version)
    if findings.data is not None:
        findings.data.add(file, transaction)
    outside = Bases(place, manifest)
    for fragment in manifest.fragments:
        try:
            _fragment(fragment, manifest, place, present, outside, findings)
        except InvalidInput as error:
            findings.add("I2", f"the base of fragment {fragment.id} cannot be opened: {error}", version)
    _indices(manifest, present, outside, findings)
    _row_ids(manifest, findings)
    return manifest


def _transaction(place: Place, file: ManifestFile, findings: _Findings) -> Transaction | None:
    """I7: the transaction of a version made no other."""
    version = file.manifest.version
    try:
        transaction = place.log.transaction_of(file)
    except NotFound:
        findings.not_checked.append(f"I7 for version {version}: it keeps no transaction")
        return None
    except (CorruptTable, StorageError) as error:
        findings.add("I2", str(error), version)
        return None
    first = findings.transactions.setdefault(transaction.uuid, version)
    if first != version:
        findings.add("I7", f"transaction {transaction.uuid} made version {first} already", version)
    return transaction


def _require(path: str, present: set[str], findings: _Findings, version: int) -> None:
    findings.named.add(path)
    if path not in present:
        findings.add("I2", f"{path} is named but not there", version)


def _fragment(fragment: DataFragment, manifest: Manifest, place: Place, present: set[str], outside: Bases, findings: _Findings) -> None:
    mixed = bool(manifest.writer_flags & Feature.MIXED_FILE_VERSIONS)
    for file in fragment.files:
        _same_as_before(fragment, file, findings, manifest.version)
        if file.base_id is None:
            _claim_data(file, findings)
            _require(f"data/{file.path}", present, findings, manifest.version)
        else:
            _exists(outside.locate(f"data/{file.path}", file.base_id), findings, manifest.version)
        if manifest.data_format and file.major >= 2 and not mixed and f"{file.major}.{file.minor}" != manifest.data_format.version:
            text = f"{file.path} has format {file.major}.{file.minor}, the table {manifest.data_format.version}"
            findings.add("I2", text, manifest.version)
    deletion = fragment.deletion_file
    if deletion is None:
        return
    path = deletion.path(fragment.id)
    store, where = place.store, path
    if deletion.base_id is None:
        _require(path, present, findings, manifest.version)
    else:
        located = outside.locate(path, deletion.base_id)
        store, where = located.store, located.path
    key = f"{store.uri}/{where}"
    claim = (key, fragment.physical_rows, deletion.deleted_rows)
    if claim in findings.deletions_read:
        return
    findings.deletions_read.add(claim)
    try:
        read_deletions(store, where, fragment, deletion)
    except NotFound:
        if deletion.base_id is not None:
            findings.add("I2", f"{key} is named but not there", manifest.version)
    except (CorruptTable, StorageError) as error:
        findings.add("I5", str(error), manifest.version)


def _same_as_before(fragment: DataFragment, file: DataFile, findings: _Findings, version: int) -> None:
    """Files never change, so what two versions say of one must agree, but for columns that one of them no longer counts."""
    rows, fields, columns = findings.files.setdefault(
        f"{file.base_id}:{file.path}", (fragment.physical_rows, file.fields, file.column_indices)
    )
    alive = [(a, b) for a, b in zip(fields, file.fields, strict=False) if TOMBSTONE not in (a, b)]
    recounted = rows != fragment.physical_rows and not fragment.is_legacy  # whose first writers miscounted
    if recounted or columns != file.column_indices or any(a != b for a, b in alive):
        findings.add("I2", f"another version says otherwise of the rows or columns of {file.path}", version)


def _exists(file: FileAt, findings: _Findings, version: int) -> None:
    """A file in a base; asked for once, however many versions name it."""
    if file.key in findings.outside:
        return
    findings.outside.add(file.key)
    try:
        file.store.head(file.path)
    except (NotFound, StorageError) as error:
        findings.add("I2", f"{file.shown} cannot be read: {error}", version)


def _indices(manifest: Manifest, present: set[str], outside: Bases, findings: _Findings) -> None:
    try:
        indices = decode_indices(manifest, f"version {manifest.version}")
    except CorruptTable as error:
        findings.add("I2", str(error), manifest.version)
        return
    for text in lost_columns(manifest, indices):
        findings.add("I2", text, manifest.version)
    for index in indices:
        directory = f"_indices/{index.uuid}/"
        if index.base_id is not None:
            try:
                for file in index.files:
                    _exists(outside.locate(directory + file.path, index.base_id), findings, manifest.version)
            except InvalidInput as error:
                findings.add("I2", f"the base of index {index.name} cannot be opened: {error}", manifest.version)
            continue
        for file in index.files:
            _require(directory + file.path, present, findings, manifest.version)
        findings.named.update(path for path in present if path.startswith(directory))


def _indices_agree(place: Place, manifest: Manifest, every: bool, findings: _Findings) -> None:
    """I13, at the newest version that was looked at: an index leaves out no row that a scan finds."""
    if not findings.pylance_sees:
        return
    try:
        for found in wrong_answers(place, manifest, every=every):
            if isinstance(found, str):
                findings.not_checked.append(f"I13 for {found}")
            else:
                findings.add("I13", found.text, manifest.version)
    except CorruptTable as error:
        findings.add("I2", str(error), manifest.version)


def _row_ids(manifest: Manifest, findings: _Findings) -> None:
    """Stable row ids: one for each physical row, none above the high-water mark."""
    if not manifest.writer_flags & Feature.STABLE_ROW_IDS:
        return
    for fragment in manifest.fragments:
        if fragment.row_ids is None:
            if not fragment.row_ids_spilled:
                findings.add("I6", f"fragment {fragment.id} has no row ids", manifest.version)
            continue
        try:
            ids = decode_row_ids(fragment.row_ids, physical_rows=fragment.physical_rows, source=f"version {manifest.version}")
        except CorruptTable as error:
            findings.add("I6", str(error), manifest.version)
            continue
        if ids.highest() >= manifest.next_row_id:
            findings.add("I6", f"fragment {fragment.id} holds row id {ids.highest()}, not yet given out", manifest.version)


def _pylance_agrees(place: Place, manifest: Manifest, findings: _Findings) -> None:
    """I13, by counting: pylance opens the version and sees as many rows as we do."""
    try:
        uri = place.lance_uri
    except InvalidInput:
        if findings.pylance_sees:
            findings.not_checked.append("I13: pylance cannot see this store")
        findings.pylance_sees = False
        return
    try:
        with lance_errors(place, "count rows", manifest.version):
            counted = open_dataset(place, manifest.version).count_rows()
    except TiltyardError as error:
        findings.add("I13", f"pylance cannot open {uri}: {error}", manifest.version)
        return
    if counted != manifest.fragments.live_rows() and has_sure_counts(manifest):
        findings.add("I13", f"pylance counts {counted} rows, we {manifest.fragments.live_rows()}", manifest.version)


def _pylance_validates(place: Place, manifest: Manifest, findings: _Findings) -> None:
    """I2, at the newest version that was looked at: the data files hold as many rows as the manifest says."""
    if not findings.pylance_sees or not has_sure_counts(manifest):  # then the files are right and the manifest is not
        return
    try:
        check_deletions(place, manifest)
        with lance_errors(place, "validate data files", manifest.version):
            open_dataset(place, manifest.version).validate()  # type: ignore[no-untyped-call]
    except TiltyardError as error:
        findings.add("I2", str(error), manifest.version)


def _blobs_are_there(place: Place, manifest: Manifest, present: set[str], findings: _Findings) -> None:
    """I2 for files of blobs, which only the rows themselves name, at the newest version that was looked at."""
    if not findings.pylance_sees:
        return
    try:
        for path in missing_blobs(place, manifest, present):
            findings.add("I2", f"{path} holds a blob of a row but is not there", manifest.version)
    except TiltyardError as error:
        findings.not_checked.append(f"I2 for blobs: {error}")


def _unique_keys(place: Place, manifest: Manifest, findings: _Findings) -> None:
    """I4: no two live rows with one primary key, at the newest version that was looked at."""
    key = primary_key_of(manifest)
    if key is None:
        return
    try:
        pieces = list(key_batches(place, dataset_at(place, manifest), check_comparable(manifest, key)))
    except TiltyardError as error:
        findings.not_checked.append(f"I4: {error}")
        return
    doubled = KnownKeys(pa.concat_tables(pieces)).repeated() if pieces else ()
    if len(doubled):
        findings.add("I4", f"{len(doubled)} keys stand in more than one row, such as {in_words(doubled)[0]}", manifest.version)
