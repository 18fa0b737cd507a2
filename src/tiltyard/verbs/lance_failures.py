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
from tiltyard.transaction.floor import read_floor
from tiltyard.verbs.lance_text import class_of, crate_of, is_panic, reason_of
from tiltyard.verbs.place import Place

_DECODERS: Final = frozenset({"lance-encoding", "lance-file", "lance-arrow"})
"""Parts of pylance that turn bytes of a file into rows."""
_STORES: Final = frozenset({"", "lance-io"})
"""Where errors of a store come from; pylance gives some of them no class."""
_DAMAGED: Final = "Encountered corrupt file"
_DATA_FILE: Final = re.compile(r"data/\S+\.(?:lance|blob)")
_MISSING: Final = "it is missing"


def failure(place: Place, doing: str, error: BaseException, version: int | None) -> TiltyardError:
    """What an error of pylance means.

    Args:
        place: the table.
        doing: what was asked of pylance; begins with ``open`` or ``write``, or is about reading.
        error: what it raised.
        version: which of our versions was read, where one was.
    """
    writing = doing.startswith("write")
    if version is not None and (found := _looked(place, version)) is not None:
        return found
    kind = class_of(error)
    text = redact(f"Could not {doing} of {place.store.uri}: {reason_of(error).rstrip('. ')}.", secret_values(place.storage_options or {}))
    if doing.startswith("open") and (isinstance(error, FileNotFoundError) or kind == "Not found"):
        return NotFound(text)
    if not writing and _is_damage(error, kind):
        return _corrupt(place, error)
    if is_panic(error) or kind == "IO" or (not kind and isinstance(error, OSError | RuntimeError) and crate_of(error) in _STORES):
        return StorageError(text, advice="Nothing was committed." if writing else None)
    return InvalidInput(text, advice="Nothing was committed." if writing else None)


def _is_damage(error: BaseException, kind: str) -> bool:
    if kind == "IO":  # unless the decoder says so itself, a store that does not answer
        return crate_of(error) in _DECODERS
    return kind in (_DAMAGED, "Not found", "CorruptFile") or crate_of(error) in _DECODERS


def _corrupt(place: Place, error: BaseException) -> CorruptTable:
    reason = reason_of(error)
    named = _DATA_FILE.search(reason)  # only for the message
    shown = redact(reason.rstrip("."), secret_values(place.storage_options or {}))
    return CorruptTable(named[0] if named else f"a data file of {place.store.uri}", shown)


# ---- the files -------------------------------------------------------------------------------------------------------------


def _looked(place: Place, version: int) -> TiltyardError | None:
    """What a look at the files of a version says; None where they are all there."""
    if version >= DETACHED:
        return None  # of a transaction that is not decided yet: nobody else cleans it up
    try:
        return _gone(place, version) or _damaged(place, version)
    except CorruptTable as error:
        return error
    except NotFound:
        return _gone(place, version)
    except StorageError:
        return None  # a store that cannot be listed: then pylance's own words have to do


def _gone(place: Place, version: int) -> TiltyardError | None:
    known = [name.version for name in place.log.versions()]
    if not known:
        return NotFound(f"There is no table at {place.store.uri} any more.", name=place.store.uri)
    if version in known:
        return None
    if version > known[-1]:
        return NotFound(f"{place.store.uri} has no version {version}; the latest is {known[-1]}.", name=str(version))
    return _cleaned_up(place, version, known[-1])


def _cleaned_up(place: Place, version: int, head: int) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"Version {version} of {place.store.uri} was cleaned up by another process; the latest version is {head}.",
        read_version=version,
        missing=(version,),
        head=head,
    )


def _damaged(place: Place, version: int) -> TiltyardError | None:
    """The first file that a version names and that is gone, or has another size."""
    name = next(name for name in place.log.versions() if name.version == version)
    manifest = place.log.peek(version, name.scheme).manifest
    for store, directory, wanted in _named(place, manifest):
        there = {info.path: info.size for info in store.list(directory)}
        for path, size in wanted.items():
            if path not in there and version < max(read_floor(place.store).version, 0):
                return _cleaned_up(place, version, place.head()[0])
            if path not in there:
                return CorruptTable(path, _MISSING)
            if size and there[path] != size:
                return CorruptTable(path, f"it has {there[path]} bytes instead of {size}")
    return None


def _named(place: Place, manifest: Manifest) -> Iterator[tuple[ObjectStore, str, dict[str, int]]]:
    """The data files of a version, with their sizes where it states them: store, directory, files."""
    wanted: dict[int | None, dict[str, int]] = defaultdict(dict)
    for fragment in manifest.fragments:
        for file in fragment.files:
            wanted[file.base_id][file.path] = file.size
    bases = {base.id: base for base in manifest.base_paths}
    for base_id, files in wanted.items():
        if base_id is None:
            yield place.store, "data/", {f"data/{path}": size for path, size in files.items()}
        else:
            base = bases[base_id]
            directory = "data/" if base.is_dataset_root else ""
            yield place.open_base(base), directory, {directory + path: size for path, size in files.items()}
