"""The same deed, done by stock pylance from a stale handle or by us through the low door, and what came of it in one word."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lance import LanceDataset

import tiltyard as ty
from tests.support.captured import Captured, head
from tests.support.real_checks import commit
from tests.support.real_ops import Deed
from tests.support.real_tables import Workshop
from tests.support.tables import open_stock

Word = Literal["committed", "retryable", "incompatible", "error"]

RETRYABLE = ("Retryable commit conflict", "Too many concurrent writers")
INCOMPATIBLE = "Incompatible transaction"


@dataclass(frozen=True)
class Came:
    """What came of a deed, and the words that came with it."""

    word: Word
    said: str = ""


def out_of_reach(deed: Deed) -> str:
    """Why pylance's own API cannot bring it about; nothing where it can."""
    if deed.act is None or deed.planted:
        return "no call writes it"
    if deed.change is not None:
        return "written in another way than this"
    return "says more than pylance does" if deed.properties else ""


def by_pylance(stale: Any, deed: Deed, captured: Captured | None) -> Came:
    """From a handle that was opened at the version the deed is built on, without working it out again after a conflict."""
    try:
        if captured is None:
            assert deed.act is not None
            deed.act(stale)
        else:  # the operation itself, as pylance recorded it
            captured.deliver(Path(stale.uri))
            operation = open_stock(str(captured.root)).read_transaction(head(captured.root)).operation
            LanceDataset.commit(stale, operation, read_version=stale.version)
    except (OSError, ValueError) as error:
        said = str(error)
        if any(one in said for one in RETRYABLE):
            return Came("retryable", said)
        return Came("incompatible" if INCOMPATIBLE in said else "error", said)
    return Came("committed")


def by_us(table: Path, deed: Deed, captured: Captured, read_version: int) -> Came:
    try:
        commit(table, deed, captured, read_version)
    except ty.errors.RetryableConflict as error:
        return Came("retryable", str(error))
    except ty.errors.IncompatibleConflict as error:
        return Came("incompatible", str(error))
    except ty.TiltyardError as error:
        return Came("error", str(error))
    return Came("committed")


def does(who: str, table: Path, stale: Any, deed: Deed, side: str, workshop: Workshop, template: str) -> Came:
    """``who`` is ``us`` or ``pylance``; ``stale`` is pylance's handle at the version both deeds are built on."""
    if who == "pylance":
        return by_pylance(stale, deed, workshop.captured(template, deed, side) if deed.bare or deed.at is not None else None)
    return by_us(table, deed, workshop.captured(template, deed, side), stale.version)
