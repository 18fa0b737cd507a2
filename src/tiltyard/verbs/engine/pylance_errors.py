"""Errors of pylance as errors of ours: by where they happened, by the class and place pylance states, and by a look at the files.

=====================  ==========================================  =============================
what is found          how                                         becomes
=====================  ==========================================  =============================
the version is gone    its manifest is not listed any more         HistoryUnavailable, NotFound
a file is gone or cut  the files the version names, by a listing   CorruptTable, HistoryUnavailable
a file is not readable the decoder's own crates made the error     CorruptTable
the store failed       pylance's class ``IO``, or a panic          StorageError
anything else          an expression or rows that do not fit       InvalidInput
=====================  ==========================================  =============================
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from tiltyard.errors import CorruptTable, HistoryUnavailable, InvalidInput, NotFound, StorageError, TiltyardError
from tiltyard.format.manifest import DETACHED, Manifest
from tiltyard.interfaces import ObjectStore
from tiltyard.redact import redact, secret_values
from tiltyard.transaction.head import read_floor
from tiltyard.verbs.engine.access import TableAccess

_DECODERS: Final = frozenset({"lance-encoding", "lance-file", "lance-arrow"})
"""Parts of pylance that turn bytes of a file into rows."""
_STORES: Final = frozenset({"", "lance-io"})
"""Where errors of a store come from; pylance gives some of them no class."""
_DAMAGED: Final = "Encountered corrupt file"
_DATA_FILE: Final = re.compile(r"data/\S+\.(?:lance|blob)")
_MISSING: Final = "it is missing"


def failure(access: TableAccess, doing: str, error: BaseException, version: int | None) -> TiltyardError:
    """What an error of pylance means.

    Args:
        access: the table.
        doing: what was asked of pylance; begins with ``open`` or ``write``, or is about reading.
        error: what it raised.
        version: which of our versions was read, where one was.
    """
    writing = doing.startswith("write")
    if version is not None and (found := _looked(access, version)) is not None:
        return found
    kind = class_of(error)
    text = redact(f"Could not {doing} of {access.store.uri}: {reason_of(error).rstrip('. ')}.", secret_values(access.storage_options or {}))
    if doing.startswith("open") and (isinstance(error, FileNotFoundError) or kind == "Not found"):
        return NotFound(text)
    if not writing and _is_damage(error, kind):
        return _corrupt(access, error)
    if is_panic(error) or kind == "IO" or (not kind and isinstance(error, OSError | RuntimeError) and crate_of(error) in _STORES):
        return StorageError(text, advice="Nothing was committed." if writing else None)
    return InvalidInput(text, advice="Nothing was committed." if writing else None)


def _is_damage(error: BaseException, kind: str) -> bool:
    if kind == "IO":  # unless the decoder says so itself, a store that does not answer
        return crate_of(error) in _DECODERS
    return kind in (_DAMAGED, "Not found", "CorruptFile") or crate_of(error) in _DECODERS


def _corrupt(access: TableAccess, error: BaseException) -> CorruptTable:
    reason = reason_of(error)
    named = _DATA_FILE.search(reason)  # only for the message
    shown = redact(reason.rstrip("."), secret_values(access.storage_options or {}))
    return CorruptTable(named[0] if named else f"a data file of {access.store.uri}", shown)


# ---- the files -------------------------------------------------------------------------------------------------------------


def _looked(access: TableAccess, version: int) -> TiltyardError | None:
    """What a look at the files of a version says; None where they are all there."""
    if version >= DETACHED:
        return None  # of a transaction that is not decided yet: nobody else cleans it up
    try:
        return _gone(access, version) or _damaged(access, version)
    except CorruptTable as error:
        return error
    except NotFound:
        return _gone(access, version)
    except StorageError:
        return None  # a store that cannot be listed: then pylance's own words have to do


def _gone(access: TableAccess, version: int) -> TiltyardError | None:
    known = [name.version for name in access.log.versions()]
    if not known:
        return NotFound(f"There is no table at {access.store.uri} any more.", name=access.store.uri)
    if version in known:
        return None
    if version > known[-1]:
        return NotFound(f"{access.store.uri} has no version {version}; the latest is {known[-1]}.", name=str(version))
    return _cleaned_up(access, version, known[-1])


def _cleaned_up(access: TableAccess, version: int, head: int) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"Version {version} of {access.store.uri} was cleaned up by another process; the latest version is {head}.",
        read_version=version,
        missing=(version,),
        head=head,
    )


def _damaged(access: TableAccess, version: int) -> TiltyardError | None:
    """The first file that a version names and that is gone, or has another size."""
    name = next(name for name in access.log.versions() if name.version == version)
    manifest = access.log.peek(version, name.scheme).manifest
    for store, directory, wanted in _named(access, manifest):
        there = {info.path: info.size for info in store.list(directory)}
        for path, size in wanted.items():
            if path not in there and version < max(read_floor(access.store).version, 0):
                return _cleaned_up(access, version, access.head()[0])
            if path not in there:
                return CorruptTable(path, _MISSING)
            if size and there[path] != size:
                return CorruptTable(path, f"it has {there[path]} bytes instead of {size}")
    return None


def _named(access: TableAccess, manifest: Manifest) -> Iterator[tuple[ObjectStore, str, dict[str, int]]]:
    """The data files of a version, with their sizes where it states them: store, directory, files."""
    wanted: dict[int | None, dict[str, int]] = defaultdict(dict)
    for fragment in manifest.fragments:
        for file in fragment.files:
            wanted[file.base_id][file.path] = file.size
    bases = {base.id: base for base in manifest.base_paths}
    for base_id, files in wanted.items():
        if base_id is None:
            yield access.store, "data/", {f"data/{path}": size for path, size in files.items()}
        else:
            base = bases[base_id]
            directory = "data/" if base.is_dataset_root else ""
            yield access.open_base(base), directory, {directory + path: size for path, size in files.items()}


_LOCATION: Final = re.compile(r",?\s*(?:location: )?\S*/rustc?/\S+\.rs:\d+:\d+")
"""Where in pylance's source an error was made."""
_MADE_IN: Final = re.compile(r"/rust/([a-z-]+)/src/\S+\.rs:\d+:\d+\s*\Z")
_OUTER: Final = re.compile(r"External error: ")
_CLASS: Final = re.compile(
    r"LanceError\((\w+)\)(?=: )|(Not found|Invalid user input|Query Execution error|Encountered corrupt file|Not supported)(?=[: ])"
    r"|(task \d+ panicked) with message"
)
_WORDY: Final = re.compile(
    r"(?:External error|Invalid user input|Query Execution error|Execution error|Schema error|Arrow error|Not supported"
    r"|This feature is not implemented|Error during planning|Error parsing function|Invalid argument error"
    r"|Error applying filter expression to batch|Encountered corrupt file|LanceError\(\w+\)):? "
)
_NESTED: Final = re.compile(r"LanceError\(\w+\): ")
_DEBUGGED: Final = re.compile(r"\(\w+ \{")
_INTERRUPTED: Final = "External error: KeyboardInterrupt:"
_ABORTED: Final = "Task was aborted"


def is_panic(error: BaseException) -> bool:
    """Whether Rust code gave up. A panic arrives as a class that is no Exception and can be imported from nowhere, or as a lost task."""
    if type(error).__name__ == "PanicException":
        return True
    return (isinstance(error, RuntimeError) and str(error) == _ABORTED) or class_of(error).startswith("task ")


def is_interrupt(error: BaseException) -> bool:
    """Whether this is Ctrl-C. Pressed while a stream is read, it comes back as an error of the stream with that name as its whole text."""
    return isinstance(error, Exception) and str(error).strip() == _INTERRUPTED


def class_of(error: BaseException) -> str:
    """The variant of pylance's own error, as the beginning of its text says; empty where it does not."""
    text = str(error)
    outer = _OUTER.match(text)
    found = _CLASS.match(text, outer.end() if outer else 0)
    return (found[1] or found[2] or found[3]) if found else ""


def crate_of(error: BaseException) -> str:
    """The part of pylance that made an error, as the end of its text says; empty where it does not."""
    found = _MADE_IN.search(str(error))
    return found[1] if found else ""


def reason_of(error: BaseException, echoed: str = "") -> str:
    """What an error says, in one line: no places in source files, no names of classes, no repetition of the caller's text."""
    text = _LOCATION.sub("", str(error))
    if echoed:
        for words in (f"Error resolving filter expression {echoed}: ", f"Error optimizing sql filter: {echoed} "):
            text = text.replace(words, "")
        text = text.replace(echoed, echoed[1:-2])
    text = " ".join(text.split())
    while (match := _WORDY.match(text)) is not None:
        text = text[match.end() :]
    text = _DEBUGGED.split(_NESTED.sub("", text))[0]
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
