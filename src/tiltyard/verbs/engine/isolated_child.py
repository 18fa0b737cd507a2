"""Reads a table with pylance in a process of its own, which may die of it: the other end of ``isolated.py``.

Run as a script. It knows nothing of this package, so that starting it takes little more than loading pylance. The request comes on
standard input, pickled by the process that started us; what goes back is never pickled: frames of Arrow streams, then one of JSON.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

FRAME: Final = struct.Struct("<cQ")
"""Kind and length of what follows: ``b`` rows as an Arrow stream, ``r`` a result and ``e`` an error, both as JSON."""
_LONGEST_TEXT: Final = 4000


def main() -> None:
    request = pickle.loads(_frame(sys.stdin.buffer))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not come between our frames
    import lance

    _limit(request["memory"])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result = _carried_out(lance, request, out)
    except BaseException as error:  # noqa: BLE001  panics of Rust are no Exception, and all of them are told to the process that asked
        kind = next((each_type.__name__ for each_type in type(error).__mro__ if each_type.__module__ == "builtins"), "")
        told = {"class": type(error).__name__, "builtin": kind, "text": str(error)[:_LONGEST_TEXT]}
        _send(out, b"e", json.dumps(told).encode())
    else:
        _send(out, b"r", json.dumps(result).encode())
    out.flush()
    os._exit(0)  # threads of pylance may be in the middle of something


def _limit(memory: int | None) -> None:
    """At most so many bytes of address space beyond what loading pylance took."""
    try:
        import resource
    except ImportError:
        return  # where there are no such limits, the death of the process is all there is
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        statm = Path("/proc/self/statm")
        used = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else 0
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + memory
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _end_with_parent() -> None:
    """Standard input stays open for as long as somebody waits for us."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)


def _carried_out(lance: Any, request: dict[str, Any], out: BinaryIO) -> Any:
    dataset = lance.dataset(request["uri"], version=request["version"], storage_options=request["options"])
    given = request["arguments"]
    match request["do"]:
        case "scan":
            return _scanned(dataset, given, out)
        case "scan_schema":
            _send_batches(pa.Table.from_batches([], _scanner(dataset, given).to_reader().schema), out)
        case "count":
            return int(dataset.count_rows(given["filter"]))
        case "take":
            for batch in dataset.take(given["rows"], columns=given["columns"]).to_batches() or ():
                _send_batches(pa.Table.from_batches([batch]), out)
        case "take_rows":
            _send_batches(dataset._take_rows(pa.array(given["rows"], pa.uint64()), columns=given["columns"]), out)
        case "validate":
            dataset.validate()
        case "open":
            pass
    return None


def _scanner(dataset: Any, given: dict[str, Any]) -> Any:
    chosen = dict(given)
    if chosen.get("fragments") is not None:
        chosen["fragments"] = [dataset.get_fragment(number) for number in chosen["fragments"]]
    return dataset.scanner(**chosen)


def _scanned(dataset: Any, given: dict[str, Any], out: BinaryIO) -> Any:
    reader = _scanner(dataset, given).to_reader()
    _send_batches(pa.Table.from_batches([], reader.schema), out)
    for batch in reader:
        _send_batches(pa.Table.from_batches([batch]), out)
    return None


def _send_batches(table: pa.Table, out: BinaryIO) -> None:
    """Each frame is a stream by itself, dictionaries included."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    _send(out, b"b", sink.getvalue())


def _send(out: BinaryIO, kind: bytes, data: bytes) -> None:
    out.write(FRAME.pack(kind, len(data)))
    out.write(data)
    out.flush()


def _frame(source: BinaryIO) -> bytes:
    _, length = FRAME.unpack(source.read(FRAME.size))
    return source.read(length)


if __name__ == "__main__":
    main()
