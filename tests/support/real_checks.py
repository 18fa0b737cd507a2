"""What must hold of a table after two operations met: it is what it should be, for us and for stock pylance, and it is sound."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any
from uuid import uuid4

import tiltyard as ty
from tests.support.captured import Captured, committed, plant
from tests.support.real_model import SINGLETONS, World, seen_by_pylance, seen_by_us
from tests.support.real_ops import Deed
from tests.support.tables import open_stock
from tiltyard.format.names import Scheme
from tiltyard.transaction.backoff import RetryPolicy
from tiltyard.transaction.transaction import Transaction

ANYWHERE = ("*",)


def open_ours(table: Path, version: int | None = None) -> ty.Table:
    return ty.Table.open(table, version=version, durability="os", allowed_bases=ANYWHERE)


def transactions(table: Path) -> set[str]:
    return {path.name for path in (table / "_transactions").iterdir()}


def commit(table: Path, deed: Deed, captured: Captured, read_version: int, race_retries: int = 20) -> ty.CommitResult:
    """Through our low door, from a handle of its own. What has no place in an operation goes through the door behind it."""
    captured.deliver(table)
    ours = open_ours(table)
    if captured.reuse is None:
        how = ty.CommitOptions(deed.properties, race_retries)
        return ours.commit(captured.operation, read_version=read_version, commit=how)
    read = committed(table, read_version).file
    transaction = Transaction(read_version, str(uuid4()), captured.operation)
    result, _ = ours._access.committer.commit(transaction, read, Scheme.V2, RetryPolicy(), reuse=captured.reuse, unverified=True)
    return result


def happens(table: Path, deed: Deed, captured: Captured | None, read_version: int) -> None:
    """Gets a deed into the history: by us, or where that is not possible in the way that is."""
    if deed.planted:
        assert captured is not None
        plant(table, captured.operation, uuid=f"planted-{deed.operation}")
    elif deed.stock_only or captured is None:
        assert deed.act is not None
        deed.act(open_stock(str(table)))
    else:
        commit(table, deed, captured, read_version)


def assert_world(table: Path, expected: World, version: int | None = None) -> None:
    """All is as expected, as pylance sees it and as we do."""
    wanted = expected.plain()
    assert differences(seen_by_pylance(table, version).plain(), {**wanted, "bases": []}) == {}
    assert differences(seen_by_us(open_ours(table, version)).plain(), wanted) == {}


def differences(seen: dict[str, Any], wanted: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is there, what should be, where these are not the same."""
    return {key: (seen[key], wanted[key]) for key in wanted if seen[key] != wanted[key]}


def assert_indices_answer(table: Path) -> None:
    """What an index says is what the rows say."""
    stock = open_stock(str(table))
    rows = stock.to_table(use_scalar_index=False).to_pylist()
    for index in stock.describe_indices():
        if index.name in SINGLETONS:
            continue
        (column,) = index.field_names
        now = sorted({one[column] for one in rows if one[column] is not None})
        once = [float(number) for number in range(40)] if column == "price" else [f"n{number}" for number in range(40)]
        values = [repr(value) for value in (*now, *once)]
        for condition in (f"{column} in ({', '.join(values)})", f"{column} in ({', '.join(map(repr, once))})", f"{column} < {values[-1]}"):
            plain, found = (sorted(stock.to_table(filter=condition, use_scalar_index=use).to_pylist(), key=repr) for use in (False, True))
            assert found == plain, f"index {index.name}: {condition}"


def orphans(table: Path) -> set[str]:
    return set(open_ours(table).check().orphans)


def assert_sound(table: Path, *, leftover: bool = False, known: Collection[str] = ()) -> None:
    """Neither our check nor pylance's finds anything wrong; and unless files are expected to be left over, none is but the known ones."""
    report = open_ours(table).check()
    assert list(report.problems) == []
    left = set(report.orphans).difference(known)
    assert bool(left) == leftover, left
    open_stock(str(table)).validate()
