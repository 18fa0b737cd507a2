"""Spark on Lance tables against Spark on Parquet: reading, writing and merging, one after the other.

    make bench-spark                             a million rows, some minutes
    make bench-spark ARGS="--rows 12000000"      what the aims are meant for; --check to fail when one is missed

Each part can be run by itself: ``python -m bench.spark_read``, ``bench.spark_write`` and ``bench.spark_verbs``, which take more options.
"""

from __future__ import annotations

import argparse
import subprocess
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the tables; a tenth of them is merged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    codes = []
    for part, rows in (("read", options.rows), ("write", options.rows), ("verbs", options.rows // 10)):
        command = [sys.executable, "-m", f"bench.spark_{part}", "--rows", str(rows), "--rounds", str(options.rounds)]
        codes.append(subprocess.run([*command, *(["--check"] if options.check else [])], check=False).returncode)
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
