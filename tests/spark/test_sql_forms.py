"""Every form that a user of a catalog types: the right result in one transaction, or a refusal that names the clause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tiltyard as ty
from tests.spark.sql_forms import FORMS, NEW, SHARDED, Form, made_lake, page, plain, run
from tests.support.proving import sample
from tiltyard.spark.sql_catalog.session_catalog import use_lake

CHOSEN = sample(FORMS, 60)
CHOSEN_SHARDED = sample(SHARDED, 20)


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    ty.spark.enable(spark)
    return spark


@pytest.fixture
def lake(session: SparkSession, tmp_path: Path) -> ty.Lake:
    made = made_lake(tmp_path / "lake")
    use_lake(session, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    return made


def test_there_are_as_many_as_promised() -> None:
    assert len({form.text for form in FORMS}) == len(FORMS) >= 120
    assert set(NEW) <= {form.text for form in FORMS if form.refused is None}


@pytest.mark.parametrize("form", CHOSEN, ids=[form.text[:70] for form in CHOSEN])
def test_form(session: SparkSession, lake: ty.Lake, form: Form) -> None:
    assert_as_told(session, lake, form)


@pytest.mark.parametrize("form", CHOSEN_SHARDED, ids=[form.text[:70] for form in CHOSEN_SHARDED])
def test_form_on_sharded_tables(session: SparkSession, tmp_path: Path, form: Form) -> None:
    lake = made_lake(tmp_path / "lake", sharded=True)
    use_lake(session, "lake", {"lake": str(tmp_path / "lake"), "durability": "os"})
    assert_as_told(session, lake, form)
    for name in {"a", "ns.more"} & set(lake.tables()):
        assert isinstance(lake.table(name), ty.ShardedTable)
    assert lake.check().ok, "each row is in its shard"


def assert_as_told(session: SparkSession, lake: ty.Lake, form: Form) -> None:
    before = lake.snapshot().id
    unparsed = session.version < NEW.get(form.text, "")
    if form.refused is not None or unparsed:
        with pytest.raises(Exception) as raised:
            run(session, form)
        told = str(raised.value)
        assert re.search("PARSE_SYNTAX_ERROR" if unparsed else str(form.refused), told), told[:500]
        assert "Traceback" not in told.split("\n")[0]
        assert lake.snapshot().id == before
        return
    found = run(session, form)
    assert form.rows is not None
    if form.table is None:
        assert plain(found) == plain(form.rows)
    else:
        assert plain(tuple(row.values()) for row in lake.table(form.table).to_arrow().to_pylist()) == plain(form.rows)
        assert lake.snapshot().id - before <= 1, "a statement is one transaction"


def test_the_page_of_forms_is_this_one() -> None:
    """Made by ``python -m tests.spark.sql_forms > docs/reference/spark-sql.md``."""
    assert (Path(__file__).parents[2] / "docs/reference/spark-sql.md").read_text() == page()
