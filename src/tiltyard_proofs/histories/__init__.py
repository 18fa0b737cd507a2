"""Judges histories of transactions, from nothing but what their clients saw: is this snapshot isolation, or a serial order?

Let processes run transactions that append elements, never the same twice, to lists and that read whole lists; let each write down
what it did with a ``Recorder``; read everything once more at the end in a transaction marked ``final``; then::

    report = check(load(open("p1.jsonl"), open("p2.jsonl")), "serializable", realtime=True)
    assert report.ok, report

A list tells the order in which it grew. So the reads give, for each key, the order of the appends, and from that follows who
overwrote whom (ww), who saw whom (wr), and who read a state that somebody else then changed (rw). A history is good if these edges
have no cycle of a kind that the isolation forbids. Every finding names the transactions and says each edge in words.

Names of tables are keys as well (see ``names``): ``Define`` gives one to a table or takes it away, ``Look`` asks for one and ``Listing``
for all of them, and ``check`` is told by ``names=`` in which order the catalog changed them.

A transaction of unknown outcome counts as committed as soon as one that committed has read one of its appends; otherwise it may or may
not have happened, and nothing is concluded from it.

In the tests the checker finds seventeen kinds of planted anomalies in large histories that are otherwise clean, is silent on the
histories of a serial and of a snapshot-isolation executor, and agrees with trying all orders on thousands of small random histories.
"""

from tiltyard_proofs.histories.checker import check
from tiltyard_proofs.histories.lines import Recorder, began_line, dump, ended_line, load
from tiltyard_proofs.histories.records import (
    AnyOp,
    Append,
    Define,
    Element,
    Elements,
    History,
    Listing,
    Look,
    NameStep,
    Op,
    Outcome,
    Read,
    Transaction,
)
from tiltyard_proofs.histories.report import Anomaly, Edge, EdgeKind, Finding, Isolation, Report

__all__ = [
    "Anomaly",
    "AnyOp",
    "Append",
    "Define",
    "Edge",
    "EdgeKind",
    "Element",
    "Elements",
    "Finding",
    "History",
    "Isolation",
    "Listing",
    "Look",
    "NameStep",
    "Op",
    "Outcome",
    "Read",
    "Recorder",
    "Report",
    "Transaction",
    "began_line",
    "check",
    "dump",
    "ended_line",
    "load",
]
