"""Streams that pylance pulls from its own threads: errors leave them whole, and nobody pulls them once the caller has gone."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tiltyard.verbs.engine.lent_streams import lent

SCHEMA = pa.schema([("id", pa.int64())])


def _batches(pulled: list[int]) -> Iterator[pa.RecordBatch]:
    for number in range(5):
        pulled.append(number)
        yield pa.record_batch({"id": [number]}, schema=SCHEMA)


def test_all_of_it_arrives() -> None:
    pulled: list[int] = []
    with lent(SCHEMA, _batches(pulled)) as reader:
        assert reader.read_all()["id"].to_pylist() == [0, 1, 2, 3, 4]


def test_after_an_interrupt_nothing_more_is_pulled() -> None:
    pulled: list[int] = []
    kept: list[pa.RecordBatchReader] = []

    def interrupted() -> None:
        with lent(SCHEMA, _batches(pulled)) as reader:
            kept.append(reader)  # as a thread of pylance has it that nobody stopped
            reader.read_next_batch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(RuntimeError, match="has stopped"):
        kept[0].read_next_batch()
    assert pulled == [0]


def test_what_fails_in_it_leaves_as_it_is() -> None:
    class Mine(Exception):
        pass

    def failing() -> Iterator[pa.RecordBatch]:
        yield from _batches([])
        raise Mine("at the end")

    def read() -> None:
        with lent(SCHEMA, failing()) as reader:
            try:
                reader.read_all()
            except Mine as error:  # pylance passes on the text
                raise OSError(str(error)) from None

    with pytest.raises(Mine, match="at the end"):
        read()
