"""Tags and branches, as they lie in the main root."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeVar
from uuid import UUID

from tiltyard.errors import AlreadyExists, InvalidInput, NotFound, OutcomeUnknown, StorageError, TiltyardError
from tiltyard.format.flags import check_writable
from tiltyard.format.manifest_file import ManifestFile, encode_manifest_file
from tiltyard.format.names import Scheme, manifest_path
from tiltyard.format.refs import (
    MAIN,
    Branch,
    Tag,
    branch_path,
    branch_root,
    check_branch_name,
    check_tag_name,
    decode_branch,
    decode_tag,
    encode_branch,
    encode_tag,
    parse_ref_file_name,
    ref_file_name,
    tag_path,
    timestamp_text,
)
from tiltyard.transaction.apply.next_manifest import Stamp, clone
from tiltyard.transaction.head import read_floor
from tiltyard.transaction.log import TRANSACTIONS
from tiltyard.transaction.operations import Clone
from tiltyard.transaction.transaction import Transaction
from tiltyard.transaction.verify import to_be_sealed
from tiltyard.verbs.engine.access import WRITER, TableAccess

TAGS = "_refs/tags/"
BRANCHES = "_refs/branches/"

Ref = TypeVar("Ref", Tag, Branch)


class Tags(Mapping[str, Tag]):
    """The tags of a table by name; read again at each access."""

    def __init__(self, main: TableAccess) -> None:
        self._main = main

    def __getitem__(self, name: str) -> Tag:
        path = tag_path(_checked(name, "tag"))
        try:
            return decode_tag(self._main.store.get(path), path)
        except NotFound as error:
            raise _missing("tag", name, self) from error

    def __iter__(self) -> Iterator[str]:
        return iter(_ref_names(self._main, TAGS))

    def __len__(self) -> int:
        return len(_ref_names(self._main, TAGS))

    def __contains__(self, name: object) -> bool:
        return name in _ref_names(self._main, TAGS)

    def __repr__(self) -> str:
        return f"Tags({list(self)})"

    def create(self, name: str, version: int | None = None, *, branch: str | None = None, metadata: Mapping[str, str] | None = None) -> Tag:
        """Names a version, which cleanup then keeps.

        Args:
            name: letters and digits (ASCII), ``.``, ``-`` and ``_``.
            version: which one; the latest by default.
            branch: of which branch; of main by default.
            metadata: anything to remember with it, as text.

        Raises:
            AlreadyExists: there is such a tag.
            NotFound: there is no such version or branch.
        """
        path = tag_path(check_tag_name(_text(name)))
        point = _Point.of(self._main, version, branch)
        now = timestamp_text(self._main.runtime.clock.now())
        tag = Tag(point.version, point.size, point.branch, now, now, _checked_metadata(metadata))
        _create(self._main, path, encode_tag(tag), f"tag {name!r}")
        try:
            point.check_still_there()
        except NotFound:
            self._main.store.delete(path)
            raise
        return tag

    def update(self, name: str, version: int | None = None, *, branch: str | None = None) -> Tag:
        """Moves a tag to another version; its metadata stays.

        Raises:
            NotFound: there is no such tag, version or branch.
        """
        old = self[_text(name)]
        point = _Point.of(self._main, version, branch)
        now = timestamp_text(self._main.runtime.clock.now())
        tag = replace(old, version=point.version, manifest_size=point.size, branch=point.branch, updated_at=now)
        self._main.store.put(tag_path(name), encode_tag(tag))
        try:
            point.check_still_there()
        except NotFound:
            self._main.store.put(tag_path(name), encode_tag(old))
            raise
        return tag

    def delete(self, name: str) -> None:
        """Deletes a tag. The version stays until it is cleaned up.

        Raises:
            NotFound: there is no such tag.
        """
        if _text(name) not in self:
            raise _missing("tag", name, self)
        self._main.store.delete(tag_path(name))


class Branches(Mapping[str, Branch]):
    """The branches of a table by name, without main; read again at each access."""

    def __init__(self, main: TableAccess) -> None:
        self._main = main

    def __getitem__(self, name: str) -> Branch:
        path = branch_path(_checked(name, "branch"))
        try:
            return decode_branch(self._main.store.get(path), path)
        except NotFound as error:
            raise _missing("branch", name, self) from error

    def __iter__(self) -> Iterator[str]:
        return iter(_ref_names(self._main, BRANCHES))

    def __len__(self) -> int:
        return len(_ref_names(self._main, BRANCHES))

    def __contains__(self, name: object) -> bool:
        return name in _ref_names(self._main, BRANCHES)

    def __repr__(self) -> str:
        return f"Branches({list(self)})"

    def create(
        self,
        name: str,
        from_: int | str | tuple[str | None, int | None] | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        kept: bool = False,
    ) -> Branch:
        """Creates a branch; open it with ``Table.open(uri, branch=name)``. No data is copied.

        Args:
            name: letters, digits, ``.``, ``-`` and ``_``, in parts joined by ``/``.
            from_: a version of main, a tag, or a branch and its version (None for the latest); main's latest by default.
            metadata: anything to remember with it, as text.
            kept: whether the caller makes sure that the version is kept, so that it may be below the floor of cleanups.

        Raises:
            AlreadyExists: there is such a branch.
            NotFound: there is no such version, tag or branch.
        """
        check_no_directory(check_branch_name(_text(name)))
        described = _checked_metadata(metadata)
        if name in self:
            raise AlreadyExists(f"There is a branch {name!r} already.", name=name, advice="Open it, or choose another name.")
        point = self._point(from_)
        self._main.ensure_safe()
        above = self[point.branch].identifier or () if point.branch else ()
        digits = UUID(self._main.runtime.random.uuid()).hex
        now = int(self._main.runtime.clock.now().timestamp())
        branch = Branch(point.version, now, point.size, point.branch, (*above, (point.version, digits)), described)
        # The name decides between several who want it, since they may begin at different versions, whose files do not meet.
        _create(self._main, branch_path(name), encode_branch(branch), f"branch {name!r}")
        try:
            if not kept:
                point.check_still_there()
            make_branch(self._main, name, point.access, point.file(), point.scheme)
        except TiltyardError as error:
            if not isinstance(error, OutcomeUnknown):
                with suppress(StorageError):
                    self._main.store.delete(branch_path(name))
            raise
        return branch

    def _point(self, from_: object) -> _Point:
        match from_:
            case None:
                return _Point.of(self._main, None, None)
            case bool():
                pass
            case int():
                return _Point.of(self._main, from_, None)
            case str():
                tag = Tags(self._main)[from_]
                return _Point.of(self._main, tag.version, tag.branch)
            case (None | str() as branch, None | int() as version):
                return _Point.of(self._main, version, branch)
        raise InvalidInput(f"A branch begins at a version, a tag, or (branch, version), not at {from_!r}.", argument="from_")

    def delete(self, name: str, *, force: bool = False) -> None:
        """Removes a branch with all that only it holds.

        Args:
            name: which one.
            force: also where only files of it are left, by a removal or a creation that was interrupted.

        Raises:
            NotFound: there is no such branch.
            InvalidInput: a tag or another branch is based on it.
        """
        path = branch_path(_checked(_text(name), "branch"))
        try:
            content = self._main.store.get(path)
        except NotFound as error:
            if force and remove_branch(self._main, name, self):
                return
            raise _missing("branch", name, self) from error
        self._refuse_used(name)
        self._main.store.delete(path)
        try:
            # Whoever based something on it meanwhile looked for this file after he had written his own.
            self._refuse_used(name)
        except TiltyardError:
            self._main.store.put(path, content)
            raise
        remove_branch(self._main, name, self)

    def _refuse_used(self, name: str) -> None:
        children = [each_name for each_name in self if each_name != name and self[each_name].parent_branch == name]
        tags = Tags(self._main)
        used = [f"branch {child!r}" for child in children] + [f"tag {tag!r}" for tag in tags if tags[tag].branch == name]
        if used:
            raise InvalidInput(
                f"Branch {name!r} is what {', '.join(used)[:120]} is based on.", argument="name", advice="Delete that first."
            )


class _Point:
    """A version of a branch that something is to refer to."""

    def __init__(self, main: TableAccess, access: TableAccess, version: int) -> None:
        self._main = main
        self.access = access
        self.version = version
        self.scheme = access.head()[1]
        # What refers to a version needs to know no more of it than this, and the handle that asks has mostly read it.
        known = access.log.last_read(version) or access.load(version, self.scheme, lazily=True)
        check_writable(known.manifest.reader_flags, known.manifest.writer_flags)
        self.size = access.store.head(manifest_path(version, self.scheme)).size

    @classmethod
    def of(cls, main: TableAccess, version: int | None, branch: str | None) -> _Point:
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            raise InvalidInput(f"A version is a number of at least 1, not {version!r}.", argument="version")
        branch = None if branch == MAIN else branch
        if branch is not None:
            Branches(main)[_text(branch)]
        access = main.on_branch(branch)
        return cls(main, access, access.head()[0] if version is None else version)

    @property
    def branch(self) -> str | None:
        return self.access.branch

    def file(self) -> ManifestFile:
        return self.access.load(self.version, self.scheme)

    def check_still_there(self) -> None:
        """After something refers to it, for only from then on a cleanup keeps it.

        Raises:
            NotFound: it went meanwhile.
        """
        if self.branch is not None:
            Branches(self._main)[self.branch]
        if read_floor(self.access.store).version > self.version and self._referred() < 2:
            # A cleanup gave it up, and may have looked for what refers to it before we came.
            raise NotFound(f"Version {self.version} is being removed by a cleanup.", name=str(self.version))
        self.access.store.head(manifest_path(self.version, self.scheme))

    def _referred(self) -> int:
        """How many tags and branches refer to it, ours among them."""
        tags = sum((Tag.branch, Tag.version) == (self.branch, self.version) for Tag in Tags(self._main).values())
        branches = Branches(self._main).values()
        return tags + sum((branch.parent_branch, branch.parent_version) == (self.branch, self.version) for branch in branches)


def _create(main: TableAccess, path: str, data: bytes, what: str) -> None:
    """Creates the file of a tag or branch, for one of any number of callers."""
    taken = AlreadyExists(f"There is a {what} already.", name=path, advice="Choose another name.")
    if not getattr(main.handler, "needs_conditional_put", True):
        # The lock is for versions alone; here we do as stock writers do.
        if parse_ref_file_name(path.rpartition("/")[2]) in _ref_names(main, path.rpartition("/")[0] + "/"):
            raise taken
        main.store.put(path, data)
        return
    main.ensure_safe()
    try:
        main.store.put_if_absent(path, data)
    except AlreadyExists as error:
        if main.store.get(path) != data:  # else a client that repeats requests met its own
            raise taken from error
    except StorageError as error:
        if not error.maybe_applied:
            raise
        try:
            if main.store.get(path) != data:
                raise taken from error
        except NotFound:
            raise error from None


def _checked_metadata(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    if metadata is not None and not (
        isinstance(metadata, Mapping) and all(isinstance(part, str) for pair in metadata.items() for part in pair)
    ):
        raise InvalidInput("metadata must map text to text.", argument="metadata")
    return MappingProxyType(dict(metadata or {}))


def _text(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"A name is text, not {name!r}.", argument="name")
    return name


def _checked(name: object, what: str) -> str:
    """Only names that a file can be about: no other can lead to a directory outside ``_refs`` or ``tree``."""
    if not isinstance(name, str):
        raise InvalidInput(f"A {what} is named by text, not {name!r}.", argument=what)
    try:
        sound = parse_ref_file_name(ref_file_name(name)) == name
    except UnicodeEncodeError:  # half a character
        sound = False
    if not sound:
        raise InvalidInput(f"{name[:60]!a} is not the name of a {what}.", argument=what)
    return name


def _ref_names(access: TableAccess, directory: str) -> list[str]:
    names = (parse_ref_file_name(file_name) for file_name in access.store.names(directory))
    return sorted(name for name in names if name is not None)


class NoSuchRef(NotFound, KeyError):
    """A ``KeyError`` too, by which mappings know that something is not there; but its text stays a sentence."""

    __str__ = Exception.__str__


def _missing(what: str, name: str, refs: Mapping[str, object]) -> NotFound:
    known = ", ".join(list(refs)[:5]) or "none"
    return NoSuchRef(f"There is no {what} {name!r}; there is: {known}.", name=name)


_OWN: Final = frozenset({"_versions", "_transactions", "_deletions", "_indices", "_refs", "_tiltyard", "data", "tree"})
"""Directories of a table: a branch below another one must not lie in one of these."""
_TICK_NS: Final = 1000


def check_no_directory(name: str) -> None:
    if taken := _OWN.intersection(name.split("/")[1:]):
        raise InvalidInput(f"{sorted(taken)[0]!r} is a directory of branch {name.split('/')[0]!r}.", argument="name")


def make_branch(main: TableAccess, name: str, source: TableAccess, file: ManifestFile, scheme: Scheme) -> None:
    """Creates the first version of a branch: the source's content under the same number, with files left where they are.

    Raises:
        AlreadyExists: there are versions in its directory, of a branch that is being made or was not removed to the end.
        OutcomeUnknown: the store left open whether it was made.
    """
    access = main.on_branch(name)
    if access.log.head() is not None:
        raise _taken(name)
    version = file.manifest.version
    operation = Clone(True, source.branch, version, source.lance_uri, name)
    transaction = Transaction(version, access.runtime.random.uuid(), operation)
    now = int(access.runtime.clock.now().timestamp() * 1_000_000) * 1000
    stamp = Stamp(max(now, file.manifest.timestamp_ns + _TICK_NS), WRITER, transaction.file_name)
    inline = to_be_sealed(transaction).to_bytes()
    data, _ = encode_manifest_file(clone(operation, file.manifest, stamp), inline)
    announced = TRANSACTIONS + transaction.file_name
    try:
        access.store.put(announced, inline)
        if access.committer.landing.create(transaction, version, scheme, data).winner is not None:
            raise _taken(name)
    except TiltyardError as error:
        if not isinstance(error, OutcomeUnknown):
            with suppress(StorageError):
                access.store.delete(announced)
        raise
    access.committer.head_check.leave_hint(version)


def _taken(name: str) -> AlreadyExists:
    advice = "Another process is creating it, or a delete was interrupted; then use branches.delete(name, force=True)."
    return AlreadyExists(f"There are versions of a branch {name!r}.", name=name, advice=advice)


def remove_branch(main: TableAccess, name: str, others: Iterable[str]) -> int:
    """Removes a branch's files, versions first, so that nobody opens the rest. Returns how many.

    Args:
        main: the table.
        name: the branch.
        others: all other branches: one below this one keeps its files.
    """
    root = branch_root(name) + "/"
    kept = tuple(branch_root(other) + "/" for other in others if branch_root(other).startswith(root))
    paths = [info.path for info in main.store.list(root) if not info.path.startswith(kept)]
    for path in sorted(paths, key=lambda path: (not path.endswith(".manifest"), path)):
        main.store.delete(path)
    return len(paths)
