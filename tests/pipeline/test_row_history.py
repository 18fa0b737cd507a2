"""Outputs that keep every version of a row: equal to a model, whatever order rows come in."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import tiltyard as ty
from tests.support.pipelines import Bench
from tests.support.proving import pick
from tiltyard.pipeline import Again, FileSource, Output, Pipeline, PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "people"


def people(bench: Bench) -> Pipeline:
    source = FileSource("changes", ("landing/*.json",), "json", "person STRING, at BIGINT, town STRING, age BIGINT")
    output = Output(TABLE, "changes", "scd2", on=("person",), sequence="at")
    return Pipeline(PipelineSpec("people", directory=bench.directory, sources=(source,), outputs=(output,)))


def row(person: str, at: int | None, town: str | None, age: int = 1) -> dict[str, Any]:
    return {"person": person, "at": at, "town": town, "age": age}


def modelled(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """All versions of each person. A row as the one before it, when it came, is no version; what came is never taken away."""
    kept: dict[str, dict[int, tuple[Any, Any]]] = {}
    for batch in events:
        for row in sorted(batch["rows"], key=lambda row: row["at"]):
            kept.setdefault(row["person"], {})
        for person in {row["person"] for row in batch["rows"]}:
            own, new = kept[person], {row["at"]: (row["town"], row["age"]) for row in batch["rows"] if row["person"] == person}
            merged = sorted({**own, **new}.items())
            before: tuple[Any, Any] | None = None
            result = {}
            for number, (at, values) in enumerate(merged):
                stays = at in own and at not in new
                if stays or number == 0 or values != before:
                    result[at] = values
                before = values
            # What is there stays there, also if a row that comes again is as the one before it.
            kept[person] = {at: values for at, values in merged if at in result or at in own}
    found = []
    for person, versions in kept.items():
        times = sorted(versions)
        for at, until in zip(times, [*times[1:], None], strict=True):
            found.append((person, at, until, until is None, *versions[at]))
    return sorted(found, key=str)


def found(bench: Bench) -> list[tuple[Any, ...]]:
    with bench.lake() as lake:
        rows = lake.table(TABLE).to_arrow().to_pylist()
        assert lake.check().ok
    names = ("person", "valid_from", "valid_to", "is_current", "town", "age")
    return sorted((tuple(row[name] for name in names) for row in rows), key=str)


def test_versions_of_rows(bench: Bench, spark: SparkSession) -> None:
    bench.lines(
        "landing/1.json", [{"person": "ada", "at": 1, "town": "Bonn", "age": 3}, {"person": "bob", "at": 1, "town": "Ulm", "age": 5}]
    )
    people(bench).run(spark)
    bench.lines(
        "landing/2.json", [{"person": "ada", "at": 5, "town": "Kiel", "age": 3}, {"person": "bob", "at": 6, "town": "Ulm", "age": 5}]
    )
    report = people(bench).run(spark)
    expected = [("ada", 1, 5, False, "Bonn", 3), ("ada", 5, None, True, "Kiel", 3), ("bob", 1, None, True, "Ulm", 5)]
    assert found(bench) == sorted(expected, key=str)
    assert dict(report.outputs[0].rows) == {"inserted": 1, "updated": 1}
    bench.lines("landing/3.json", [{"person": "ada", "at": 3, "town": "Mainz", "age": 3}])
    people(bench).run(spark)
    late = [("ada", 1, 3, False, "Bonn", 3), ("ada", 3, 5, False, "Mainz", 3), *expected[1:]]
    assert found(bench) == sorted(late, key=str), "a row that comes late takes its place"
    people(bench).run(spark, select=Again(refresh=(TABLE,)))
    assert found(bench) == sorted(late, key=str)


@pytest.mark.parametrize("seed", range(pick(1, 12)))
def test_versions_are_those_of_a_model(bench: Bench, spark: SparkSession, seed: int) -> None:
    """Rows in any order, over several runs, with nulls, and some of them twice."""
    print(f"seed {seed}")
    random_of = random.Random(seed)
    batches: list[dict[str, Any]] = []
    for turn in range(3):
        rows = {}
        for _ in range(random_of.randint(1, 8)):
            person, at = random_of.choice("ab"), random_of.randint(1, 9)
            rows[person, at] = {"person": person, "at": at, "town": random_of.choice(["x", "y", None]), "age": 1}
        listed = [*rows.values(), *random_of.sample([*rows.values()], 1)]
        batches.append({"rows": list(rows.values())})
        bench.lines(f"landing/{turn}.json", listed)
        people(bench).run(spark)
        assert found(bench) == modelled(batches), (seed, turn, batches)


def test_what_cannot_be_put_in_order_is_refused(bench: Bench, spark: SparkSession) -> None:
    bench.lines("landing/1.json", [{"person": "ada", "at": None, "town": "Bonn", "age": 3}])
    with pytest.raises(ty.InvalidInput, match=r"outputs.people.sequence: 1 rows have no value in"):
        people(bench).run(spark)
    bench.lines("landing/1.json", [{"person": "ada", "at": 1, "town": town, "age": 3} for town in ("Bonn", "Kiel")])
    with pytest.raises(ty.InvalidInput, match=r"person|key"):
        people(bench).run(spark)
    for more, what in (
        ({"mode": "append", "sequence": "at"}, "sequence is needed for"),
        ({"mode": "scd2", "on": ("a",)}, "sequence is needed"),
    ):
        with pytest.raises(ty.InvalidInput, match=what):
            Output("t", "s", **more)
