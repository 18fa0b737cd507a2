"""Open datasets of one process, by where they are: opening costs more than reading a small table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from tiltyard.distributed import VersionStatistics, reading_errors, version_statistics
from tiltyard.spark.read.partitioning import Fragment
from tiltyard.spark.target import Address

if TYPE_CHECKING:
    from lance import LanceDataset

_KEPT: Final = 16
_open: OrderedDict[Address, LanceDataset] = OrderedDict()
_fragments: OrderedDict[Address, list[Fragment]] = OrderedDict()
_statistics: OrderedDict[Address, VersionStatistics] = OrderedDict()
_lock: Final = Lock()


def dataset(address: Address) -> LanceDataset:
    """pylance's dataset, opened once a process. A version never changes, so neither does what is kept."""
    with _lock:
        if address in _open:
            _open.move_to_end(address)
            return _open[address]
    import lance  # not fork-safe, so never before this process is the one that reads

    with reading(address):
        found = lance.dataset(address.uri, version=address.version, storage_options=dict(address.storage) or None)
    with _lock:
        _open[address] = found
        while len(_open) > _KEPT:
            _open.popitem(last=False)
    return found


@contextmanager
def reading(address: Address) -> Iterator[None]:
    """Errors of pylance as errors of ours, without credentials."""
    with reading_errors(address.uri, address.version, dict(address.storage)):
        yield


def fragments_at(address: Address) -> list[Fragment]:
    """The fragments with their live rows and their size, worked out once."""
    with _lock:
        known = _fragments.get(address)
    if known is None:
        known = _fragments_of(dataset(address))
        with _lock:
            _fragments[address] = known
            while len(_fragments) > _KEPT:
                _fragments.popitem(last=False)
    return known


def statistics_at(address: Address) -> VersionStatistics:
    """What is known of columns without reading them, looked up once: what comes later is for later versions."""
    with _lock:
        known = _statistics.get(address)
    if known is None:
        known = version_statistics(address.uri, address.version, dict(address.storage) or None, address.version_id)
        with _lock:
            _statistics[address] = known
            while len(_statistics) > _KEPT:
                _statistics.popitem(last=False)
    return known


def forget_statistics() -> None:
    """Has statistics looked up again: there are new ones of versions that were read before."""
    with _lock:
        _statistics.clear()


def _fragments_of(opened: LanceDataset) -> list[Fragment]:
    found = []
    for fragment in opened.get_fragments():
        known: Any = fragment.metadata
        deleted = known.deletion_file.num_deleted_rows if known.deletion_file is not None else 0
        size = sum(file.file_size_bytes or 0 for file in known.files)
        found.append(Fragment(fragment.fragment_id, known.physical_rows - deleted, size, known.physical_rows))
    return found
