"""Forms in Connect sessions: each has a lake and a session of its own, on a server that was started with a catalog of another lake."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession

import tiltyard as ty
from tests.spark.sql_forms import FORMS, Form, made_lake, plain, run


def differences(spark: SparkSession, place: Path, numbers: Iterable[int]) -> dict[str, str]:
    """By form, what is not as the page says."""
    told = {}
    for number in numbers:
        lake = made_lake(place / str(number))
        session = spark.newSession()
        session.conf.set("spark.sql.catalog.lake", "tiltyard.LakeCatalog")
        session.conf.set("spark.sql.catalog.lake.uri", str(place / str(number)))
        session.conf.set("spark.sql.catalog.lake.durability", "os")
        session.sql("USE lake")  # the first use loads the catalog
        session.sql("USE spark_catalog")
        different = difference(session, lake, FORMS[number])
        if different is not None:
            told[FORMS[number].text] = different
    return told


def difference(session: SparkSession, lake: ty.Lake, form: Form) -> str | None:
    """What is not as the page says of this one; None where nothing is."""
    before = lake.snapshot().id
    try:
        found = run(session, form)
    except Exception as error:  # noqa: BLE001  # whatever a client raises is what is looked at
        told = str(error)
        if form.refused is None:
            return told[:300]
        if lake.snapshot().id != before:
            return "refused, and changed something"
        return None if re.search(form.refused, told) else f"refused otherwise: {told[:300]}"
    if form.refused is not None:
        return "taken"
    if form.table is not None:
        found = [tuple(row.values()) for row in lake.table(form.table).to_arrow().to_pylist()]
        if lake.snapshot().id > before + 1:
            return "more than one transaction"
    return None if plain(found) == plain(form.rows or ()) else f"gave {plain(found)}"
