"""Generates ``lance_pb2.py`` and its types from ``lance.proto``; with ``--check`` only tells whether they are in step."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "src"
PROTO = "tiltyard/format/lance.proto"
GENERATED = ("tiltyard/format/lance_pb2.py", "tiltyard/format/lance_pb2.pyi")


def generate(target: Path) -> None:
    """Runs the compiler that comes with grpcio-tools, so that everybody has the same one."""
    include = Path(protoc.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{ROOT}", f"-I{include}", f"--python_out={target}", f"--pyi_out={target}", PROTO]
    if protoc.main(arguments) != 0:
        raise SystemExit(f"{PROTO} does not compile")


def main() -> None:
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = [name for name in GENERATED if (Path(scratch) / name).read_bytes() != (ROOT / name).read_bytes()]
    if stale:
        raise SystemExit(f"not in step with {PROTO}: {', '.join(stale)}; run `make proto`")


if __name__ == "__main__":
    main()
