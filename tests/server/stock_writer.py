"""A stock lancedb client that adds rows one by one: ``stock_writer.py URL TABLE FIRST COUNT``; prints how long it took."""

from __future__ import annotations

import sys
import time

import lancedb
import pyarrow as pa

if __name__ == "__main__":
    url, name, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    table = lancedb.connect_namespace("rest", {"uri": url}).open_table(name)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    for number in range(first, first + count):
        table.add(pa.table({"id": [number]}))
    print(time.perf_counter() - started, flush=True)
