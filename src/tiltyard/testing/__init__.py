"""Tools to test tables and backends: conformance suites, faulty stores, controlled clocks."""

from tiltyard.testing.clocks import ManualClock, SeededRandomness, manual_runtime
from tiltyard.testing.conformance import ObjectStoreTests
from tiltyard.testing.counting_records import CountingRecords
from tiltyard.testing.faults import Fault, FaultStore, Killed, KillPoint, all_faults
from tiltyard.testing.power import PowerLossStore
from tiltyard.testing.record_conformance import RecordsTests, SharedLocksTests
from tiltyard.testing.record_process_conformance import RecordsAcrossProcessesTests
from tiltyard.testing.stores import CountingStore, LatencyStore, PausingStore, WrapperStore

__all__ = [
    "CountingRecords",
    "CountingStore",
    "Fault",
    "FaultStore",
    "KillPoint",
    "Killed",
    "LatencyStore",
    "ManualClock",
    "ObjectStoreTests",
    "PausingStore",
    "PowerLossStore",
    "RecordsAcrossProcessesTests",
    "RecordsTests",
    "SeededRandomness",
    "SharedLocksTests",
    "WrapperStore",
    "all_faults",
    "manual_runtime",
]
