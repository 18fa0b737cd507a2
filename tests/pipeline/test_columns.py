"""Columns of files go by their names, options are known or refused, and what nothing is made of is not consumed."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.support.pipelines import Bench
from tiltyard.pipeline import FileSource, Output, Pipeline, PipelineSpec, Step
from tiltyard.pipeline.plan import select
from tiltyard.pipeline.reader_options import KNOWN, REFUSED

ORDERS = "order_id BIGINT, customer_id BIGINT"


def orders(bench: Bench, pattern: str = "*.csv", kind: Any = "csv", schema: str | None = ORDERS, **more: Any) -> Pipeline:
    source = FileSource("a", (f"landing/{pattern}",), kind, schema, **more)
    output = Output("t", "s", "merge", on=("order_id",))
    return Pipeline(
        PipelineSpec("p", sources=(source,), steps=(Step("s", "SELECT * FROM a"),), outputs=(output,), directory=bench.directory)
    )


def put(bench: Bench, **files: str) -> None:
    for name, text in files.items():
        (bench.directory / "landing" / f"{name}.csv").write_text(text)


def merged(bench: Bench) -> list[tuple[Any, ...]]:
    with bench.lake() as lake:
        return sorted(tuple(row.values()) for row in lake.table("t").to_arrow().to_pylist()) if "t" in lake.tables() else []


def test_a_csv_is_read_by_the_names_of_its_header(bench: Bench, spark: SparkSession) -> None:
    put(bench, f1="order_id,customer_id\n5,7\n", f2="customer_id,order_id\n5,900001\n", f3="\nCustomer_ID,order_id\n8,6\n", f4="\n\n")
    with gzip.open(bench.directory / "landing/f5.csv.gz", "wt") as stream:
        stream.write("customer_id,order_id\n9,10\n")
    report = orders(bench, "*.csv*", file_column="file").run(spark)
    assert report.rows_in == 4
    assert merged(bench) == [(5, 7, "f1.csv"), (6, 8, "f3.csv"), (10, 9, "f5.csv.gz"), (900001, 5, "f2.csv")]


def test_headers_that_do_not_fit_are_refused_and_nothing_is_consumed(bench: Bench, spark: SparkSession) -> None:
    put(bench, f1="order_id,customer_id\n5,7\n", f2="order_id\n6\n")
    with pytest.raises(ty.InvalidInput, match=r"f2\.csv lacks the column 'customer_id'.*Nothing was consumed"):
        orders(bench).run(spark)
    put(bench, f2="customer_id,order_id,extra\n7,6,1\n")
    with pytest.raises(ty.InvalidInput, match=r"f2\.csv has the column 'extra'"):
        orders(bench).run(spark)
    with pytest.raises(ty.InvalidInput, match=r"f2\.csv has the column 'extra' in its header, which other files have not"):
        orders(bench, schema=None).run(spark)
    assert merged(bench) == []
    put(bench, f2="customer_id,order_id\n7,6\n")
    assert orders(bench).run(spark).rows_in == 2
    assert merged(bench) == [(5, 7), (6, 7)]


def test_without_a_schema_the_names_count_too(bench: Bench, spark: SparkSession) -> None:
    put(bench, f1="order_id,customer_id\n5,7\n", f2="customer_id,order_id\n5,900001\n")
    orders(bench, schema=None, options={"INFERSCHEMA": "true"}).run(spark)
    assert merged(bench) == [(5, 7), (900001, 5)]
    put(bench, f3="customer_id,order_id\nx,1\n", f4="order_id,customer_id\n2,3\n")
    with pytest.raises(ty.InvalidInput, match=r"column 'customer_id' looks like string in some files and int in others"):
        orders(bench, schema=None, options={"inferSchema": "true"}).run(spark)


def test_what_cannot_be_read_has_its_column(bench: Bench, spark: SparkSession) -> None:
    put(bench, f1="customer_id,order_id\nseven,5\n")
    orders(bench, schema=f"{ORDERS}, _corrupt_record STRING", options={"mode": "PERMISSIVE"}).run(spark)
    assert merged(bench) == [(5, None, "seven,5")]


def test_json_goes_by_names(bench: Bench, spark: SparkSession) -> None:
    (bench.directory / "landing/f1.json").write_text('{"customer_id": 7, "order_id": 5, "unknown": 1}\n{"order_id": 6}\n')
    orders(bench, "*.json", "json").run(spark)
    assert merged(bench) == [(5, 7), (6, None)]


def test_options_are_those_of_this_spark(spark: SparkSession) -> None:
    """Each option of the running Spark's readers is taken or refused with a reason, and each that is taken is there."""
    jvm: Any = spark._jvm
    places = {
        "csv": "org.apache.spark.sql.catalyst.csv.CSVOptions", "json": "org.apache.spark.sql.catalyst.json.JSONOptions",
        "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetOptions",
    }  # fmt: skip
    for kind, place in places.items():
        found = jvm.java.lang.Class.forName(f"{place}$").getField("MODULE$").get(None).getAllOptions().toSeq()
        names = {str(found.apply(number)) for number in range(found.size())}
        assert KNOWN[kind] <= names, f"{kind}: {KNOWN[kind] - names}"
        assert names <= KNOWN[kind] | set(REFUSED), f"{kind}: {names - KNOWN[kind] - set(REFUSED)}"


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("csv", "headr", "options.headr is not an option that Spark has for csv. Did you mean header"),
        ("json", "no_such_option", "no_such_option"),
        ("parquet", "header", "options.header"),
        ("csv", "enforceSchema", "enforceSchema is not taken: columns are matched by the names in the header"),
        ("json", "PathGlobFilter", "PathGlobFilter is not taken: files counts"),
        ("parquet", "ignoreCorruptFiles", "ignoreCorruptFiles is not taken"),
    ],
)
def test_options_that_are_refused_by_name(kind: Any, name: str, told: str) -> None:
    with pytest.raises(ty.InvalidInput, match=told):
        FileSource("a", ("*",), kind, options={name: "1"})


@pytest.mark.parametrize(
    ("place", "text"),
    [("sources.a", '[sources.a]\nfiles="*.csv"\nno_such_key=1'), ("outputs.t", '[[outputs]]\ntable="t"\nfrom="a"\nno_such_key=1')],
)
def test_keys_that_nobody_knows(bench: Bench, place: str, text: str) -> None:
    file = bench.directory / "p.toml"
    file.write_text(f'name="p"\n{text}\n')
    with pytest.raises(ty.InvalidInput, match=f"{place} has unknown keys 'no_such_key'"):
        Pipeline.load(file)


# ---- sources that nothing is made of ---------------------------------------------------------------------------------------------


def two(bench: Bench, *steps: Step, outputs: tuple[Output, ...]) -> PipelineSpec:
    sources = tuple(FileSource(name, (f"landing/{name}/*.json",), "json", "id BIGINT") for name in "ab")
    return PipelineSpec("two", sources=sources, steps=steps, outputs=outputs, directory=bench.directory)


def test_a_source_waits_for_the_step_that_reads_it(bench: Bench, spark: SparkSession) -> None:
    for name in "ab":
        bench.lines(f"landing/{name}/1.json", [{"id": 1}])
    first, second = Step("sa", "SELECT *, 'b' AS x FROM a -- not b"), Step("sb", "SELECT * FROM b")
    report = Pipeline(two(bench, first, second, outputs=(Output("ta", "sa"),))).run(spark)
    assert [one.name for one in report.sources] == ["a"], "the rows of sb get nowhere"
    report = Pipeline(two(bench, first, second, outputs=(Output("ta", "sa"), Output("tb", "sb")))).run(spark)
    with bench.lake() as lake:
        assert [lake.table(name).count_rows() for name in ("ta", "tb")] == [1, 1]


@pytest.mark.parametrize("names", [None, ["sb"]])
def test_a_flow_that_ends_nowhere_is_not_selected(bench: Bench, names: list[str] | None) -> None:
    spec = two(bench, Step("sa", "SELECT * FROM a"), Step("sb", "SELECT * FROM b"), outputs=(Output("ta", "sa"),))
    chosen = select(spec, names)
    assert (chosen.sources, [one.name for one in chosen.steps]) == ((("a",), ["sa"]) if names is None else ((), []))


def test_functions_and_checks_are_ends(bench: Bench) -> None:
    step = Step("sb", function=lambda context: context["b"], inputs=("b",))
    assert select(two(bench, step, outputs=(Output("ta", "a"),))).sources == ("a", "b")
