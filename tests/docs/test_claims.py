"""Claims of the design notes that nothing else holds us to."""

from __future__ import annotations

from pathlib import Path

import tiltyard as ty
from tiltyard.format.manifest_file import decode_manifest_file, encode_manifest_file


def test_a_spliced_manifest_is_what_encoding_from_scratch_would_give(tmp_path: Path) -> None:
    table = ty.Table.create(tmp_path / "table", [{"id": 0}], primary_key=["id"], options=ty.TableOptions(config={"a": "b"}))
    for number in range(1, 4):
        table.append([{"id": number}], message=f"append {number}")
        newest = min((tmp_path / "table" / "_versions").glob("*.manifest"))
        data = newest.read_bytes()
        file = decode_manifest_file(data, source=newest.name, version=table.version)
        assert encode_manifest_file(file.manifest, file.transaction)[0] == data
