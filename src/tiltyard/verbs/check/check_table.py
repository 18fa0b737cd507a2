"""Is this table sound? Every invariant that its files alone can show, with the file and the version where it breaks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.format.flags import Feature
from tiltyard.format.fragments import decode_fragment
from tiltyard.format.manifest import Manifest, decode_indices
from tiltyard.format.manifest_file import ManifestFile, decode_manifest_file
from tiltyard.format.names import HINT_PATH, VersionName, decode_hint, parse_manifest_name
from tiltyard.format.values import TOMBSTONE, DataFile, DataFragment
from tiltyard.interfaces import ObjectStore
from tiltyard.transaction.head import read_floor
from tiltyard.transaction.log import TRANSACTIONS, VERSIONS, VersionLog
from tiltyard.transaction.transaction import Transaction
from tiltyard.verbs.check.check_data import DataCheck
from tiltyard.verbs.check.check_indices import lost_columns, wrong_answers
from tiltyard.verbs.check.check_rows import RowCount, check_counts, check_row_ids, check_unique_keys, validate_with_pylance
from tiltyard.verbs.check.findings import CheckReport, Findings
from tiltyard.verbs.engine.access import TableAccess, main_access
from tiltyard.verbs.engine.blobs import blob_directory, missing_blobs
from tiltyard.verbs.engine.row_deletion import read_deletions
from tiltyard.verbs.engine.verify_files import Bases, FileAt, Progress
from tiltyard.verbs.table_refs import Branches, Tags


def check_table(
    access: TableAccess, versions: Iterable[int] | None = None, *, data: bool = False, progress: Progress | None = None
) -> CheckReport:
    """Checks I1, I2 and I4 to I9 of the promises, that pylance sees the same rows (I13), and that indices agree with them.

    Args:
        access: the table.
        versions: which; all by default.
        data: whether every file is read and compared with its digest (I14), and every row with the indices.
        progress: is told how many of how many bytes were read.

    Raises:
        NotFound: there is no table, or no such version.
    """
    access.head()
    findings = Findings()
    hint = _hint(access)  # before the versions: one that is committed meanwhile is then no contradiction
    there = access.log.versions()
    wanted = set(versions) if versions is not None else {name.version for name in there}
    missing = wanted - {name.version for name in there}
    if missing:
        raise NotFound(f"{access.store.uri} has no version {min(missing)}.", name=str(min(missing)))
    _gapless(access, there, findings)
    if hint is not None and hint > there[-1].version:
        findings.add("I9", f"the hint names version {hint}, the latest is {there[-1].version}")
    present = _present(access.store)
    findings.by_directory = {
        directory: tuple(paths) for directory, paths in itertools.groupby(sorted(present), lambda path: path[: path.rfind("/") + 1])
    }
    _detached(access, present, findings)
    findings.data = DataCheck(access) if data else None
    log = VersionLog(access.store, verify=True)  # what a file says of itself is compared with all of its bytes, where it says it
    latest: Manifest | None = None
    counted: list[RowCount] = []
    for name in there:
        if name.version in wanted:
            latest = _one_version(access, log, name, present, findings)
            counted += [] if latest is None else [RowCount.of(latest)]
    if _is_intact(findings, progress):
        if access.limits is not None and len(wanted) > 1:  # a child for each version would take long
            counted = [] if latest is None else counted[-1:]
            findings.not_checked.append("I13 for older versions: each would be counted in a process of its own")
        for count in counted:
            check_counts(access, count, findings)
        if latest is not None:
            _indices_agree(access, latest, data, findings)
            check_unique_keys(access, latest, findings)
            validate_with_pylance(access, latest, findings)
            _blobs_are_there(access, latest, present, findings)
    _leave_out_cleaned_up(access, findings)
    complete = wanted == {name.version for name in there} and not findings.problems and findings.orphans_known
    orphans = sorted(present - findings.named) if complete else []
    report = CheckReport(
        access.store.uri, len(wanted), len(findings.named), tuple(findings.problems), tuple(orphans), tuple(findings.not_checked)
    )
    if findings.data is None:
        return report
    return replace(report, data=True, verified=findings.data.verified, unverified=findings.data.unverified)


def _leave_out_cleaned_up(access: TableAccess, findings: Findings) -> None:
    """What a cleanup took while it was looked at proves nothing; a version that is still there does, and so does a lost head."""
    if not findings.problems:
        return
    there = {name.version for name in access.log.versions()}
    gone = {
        problem.version for problem in findings.problems if problem.version is not None and problem.version < max(there, default=0)
    } - there
    if gone:
        findings.problems = [problem for problem in findings.problems if problem.version not in gone]
        findings.not_checked.append(f"versions {min(gone)} to {max(gone)}: a cleanup removed them meanwhile")
        findings.orphans_known = False


def _is_intact(findings: Findings, progress: Progress | None) -> bool:
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


def _gapless(access: TableAccess, there: list[VersionName], findings: Findings) -> None:
    """I1. Cleanup keeps tagged versions and fork points, so a gap above those alone is in order, and any gap below its floor.

    A foreign cleanup goes by age. Where the clocks of writers differed it leaves older versions below younger ones that it takes: then a
    gap proves nothing.
    """
    numbers = [name.version for name in there]
    floor = read_floor(access.store).version
    findings.referred = _referred(access)
    kept = {number for number in numbers if number < floor} | findings.referred
    for before, after in itertools.pairwise(numbers):
        if after == before + 1 or all(number in kept for number in numbers[: numbers.index(after)]):
            continue
        text = f"versions {before + 1} to {after - 1} are missing"
        if _clocks_differed(access, there):
            findings.not_checked.append(f"I1: {text}; the clocks of writers differed, so a cleanup by age may have removed them")
        else:
            findings.add("I1", text)


def _referred(access: TableAccess) -> set[int]:
    """Versions of this line of history that tags name or branches begin at."""
    main = main_access(access)
    tags = {tag.version for tag in Tags(main).values() if tag.branch == access.branch}
    return tags | {branch.parent_version for branch in Branches(main).values() if branch.parent_branch == access.branch}


def _clocks_differed(access: TableAccess, there: list[VersionName]) -> bool:
    """Whether a version is older than the one below it."""
    stamps = []
    for name in there:
        try:
            stamps.append(access.log.peek(name.version, name.scheme).manifest.timestamp_ns)
        except TiltyardError:
            continue  # reported where the version is looked at
    return any(after < before for before, after in itertools.pairwise(stamps))


def _hint(access: TableAccess) -> int | None:
    try:
        return decode_hint(access.store.get(HINT_PATH))
    except NotFound:
        return None


def _present(store: ObjectStore) -> set[str]:
    """All files of the kinds a version can name."""
    return {info.path for prefix in ("data/", "_deletions/", "_indices/", TRANSACTIONS) for info in store.list(prefix)}


def _detached(access: TableAccess, present: set[str], findings: Findings) -> None:
    """Versions beside the line of history: what they name is no orphan. Nothing else is asked of them."""
    for name in access.store.names(VERSIONS):
        parsed = parse_manifest_name(name)
        if parsed is None or not parsed.detached:
            continue
        try:
            manifest = decode_manifest_file(access.store.get(VERSIONS + name), source=VERSIONS + name, version=parsed.version).manifest
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


def _claim_data(file: DataFile, findings: Findings) -> None:
    """A data file and the blobs beside it belong to somebody."""
    if file.base_id is None and f"data/{file.path}" not in findings.named:
        findings.named.add(f"data/{file.path}")
        findings.named.update(findings.by_directory.get(blob_directory(file.path), ()))


def _one_version(access: TableAccess, log: VersionLog, name: VersionName, present: set[str], findings: Findings) -> Manifest | None:
    version = name.version
    try:
        file = access.trusted(log.load(version, name.scheme))
    except TiltyardError as error:
        findings.add("I2", str(error), version)
        return None
    manifest = file.manifest
    transaction = _transaction(access, file, findings)
    if manifest.transaction_file:
        path = TRANSACTIONS + manifest.transaction_file
        # pylance's cleanup takes the transaction file of a version that a branch begins at; the version has a copy.
        if path in present or file.transaction is None or version not in findings.referred:
            _require(path, present, findings, version)
    if findings.data is not None:
        findings.data.add(file, transaction)
    outside = Bases(access, manifest)
    _fragments(manifest, access, present, outside, findings)
    _indices(manifest, present, outside, findings)
    return manifest


def _fragments(manifest: Manifest, access: TableAccess, present: set[str], outside: Bases, findings: Findings) -> None:
    """All fragments of a version, but for those that were found sound as they are in another one."""
    if manifest.next_row_id < findings.highest_next_row_id:
        findings.sound.clear()  # row ids that were given out there are not yet here
    findings.highest_next_row_id = manifest.next_row_id
    mixed = bool(manifest.writer_flags & Feature.MIXED_FILE_VERSIONS)
    stable = bool(manifest.writer_flags & Feature.STABLE_ROW_IDS)
    terms = (manifest.data_format, manifest.base_paths, mixed, stable)
    sound = findings.sound.setdefault(terms, set())
    for record in manifest.fragments.records():
        if record in sound:
            continue
        fragment = decode_fragment(record, f"version {manifest.version}")
        problems = len(findings.problems)
        try:
            _fragment(fragment, manifest, mixed, access, present, outside, findings)
        except InvalidInput as error:
            findings.add("I2", f"the base of fragment {fragment.id} cannot be opened: {error}", manifest.version)
        if stable:
            check_row_ids(fragment, manifest, findings)
        if len(findings.problems) == problems:
            sound.add(record)


def _transaction(access: TableAccess, file: ManifestFile, findings: Findings) -> Transaction | None:
    """I7: the transaction of a version made no other."""
    version = file.manifest.version
    try:
        transaction = access.log.transaction_of(file)
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


def _require(path: str, present: set[str], findings: Findings, version: int) -> None:
    findings.named.add(path)
    if path not in present:
        findings.add("I2", f"{path} is named but missing", version)


def _fragment(
    fragment: DataFragment, manifest: Manifest, mixed: bool, access: TableAccess, present: set[str], outside: Bases, findings: Findings
) -> None:
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
    store, where = access.store, path
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
            findings.add("I2", f"{key} is named but missing", manifest.version)
    except (CorruptTable, StorageError) as error:
        findings.add("I5", str(error), manifest.version)


def _same_as_before(fragment: DataFragment, file: DataFile, findings: Findings, version: int) -> None:
    """Files never change, so what two versions say of one must agree, but for columns that one of them no longer counts."""
    rows, fields, columns = findings.files.setdefault(
        f"{file.base_id}:{file.path}", (fragment.physical_rows, file.fields, file.column_indices)
    )
    alive = [(a, b) for a, b in zip(fields, file.fields, strict=False) if TOMBSTONE not in (a, b)]
    recounted = rows != fragment.physical_rows and not fragment.is_legacy  # whose first writers miscounted
    if recounted or columns != file.column_indices or any(a != b for a, b in alive):
        findings.add("I2", f"another version has a different row count or columns for {file.path}", version)


def _exists(file: FileAt, findings: Findings, version: int) -> None:
    """A file in a base; asked for once, however many versions name it."""
    if file.key in findings.outside:
        return
    findings.outside.add(file.key)
    try:
        file.store.head(file.path)
    except (NotFound, StorageError) as error:
        findings.add("I2", f"{file.shown} cannot be read: {error}", version)


def _indices(manifest: Manifest, present: set[str], outside: Bases, findings: Findings) -> None:
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


def _indices_agree(access: TableAccess, manifest: Manifest, every: bool, findings: Findings) -> None:
    """I13, at the newest version that was looked at: an index leaves out no row that a scan finds."""
    if not findings.pylance_sees:
        return
    try:
        for found in wrong_answers(access, manifest, every=every):
            if isinstance(found, str):
                findings.not_checked.append(f"I13 for {found}")
            else:
                findings.add("I13", found.text, manifest.version)
    except CorruptTable as error:
        findings.add("I2", str(error), manifest.version)


def _blobs_are_there(access: TableAccess, manifest: Manifest, present: set[str], findings: Findings) -> None:
    """I2 for files of blobs, which only the rows themselves name, at the newest version that was looked at."""
    if not findings.pylance_sees:
        return
    try:
        for path in missing_blobs(access, manifest, present):
            findings.add("I2", f"{path} holds a blob of a row but is missing", manifest.version)
    except TiltyardError as error:
        findings.not_checked.append(f"I2 for blobs: {error}")
