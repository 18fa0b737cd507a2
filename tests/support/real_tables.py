"""Small tables with a history, made once and copied for each test; and operations against them, captured once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import lance

from tests.support import real_ops as do
from tests.support.captured import Captured, capture, committed, head, plant
from tests.support.real_model import Past, World, row
from tests.support.real_ops import Deed
from tests.support.tables import open_stock
from tiltyard import ops

RESERVED: Final = 40
"""Fragment ids every table has set aside, so that rewrites can be captured that take ids as compactions do."""
SLOT: Final = 8
"""How many of these belong to each side."""
CONFIG: Final = {"a": "0", "b": "0", "kept": "1"}

MINE, THEIRS = "mine", "theirs"


@dataclass(frozen=True)
class Template:
    """A table to copy, and what each of its versions held. The last version set fragment ids aside, the one before it did not."""

    name: str
    root: Path
    past: Past

    @property
    def version(self) -> int:
        return max(self.past)


@dataclass(frozen=True)
class Recipe:
    """What distinguishes a template: how it begins and what is done to it."""

    early: tuple[Deed, ...] = ()
    """When it has fragments 0 and 1."""
    late: tuple[Deed, ...] = ()
    """When it has all four."""
    keyed: bool = False
    options: dict[str, Any] = field(default_factory=dict)


RECIPES: Final[dict[str, Recipe]] = {
    "plain": Recipe(),
    "stable": Recipe(options={"enable_stable_row_ids": True}),
    "keyed": Recipe(keyed=True),
    "holes": Recipe(late=(do.deletes({0: [0]}),)),
    "indexed": Recipe(early=(do.indexes("a"), do.indexes("b", "note"))),
    "covered": Recipe(late=(do.indexes("a"), do.indexes("b", "note"))),
    "log": Recipe(late=(do.sets_up_log(),)),
    "keyed log": Recipe(keyed=True, late=(do.sets_up_log(),)),
    "reuse": Recipe(late=(do.indexes("a"), do.rewrites((0, 1), later=True), do.rewrites((2, 3), later=True), do.drops_index("a"))),
}


def _begin(root: Path, recipe: Recipe) -> None:
    schema = do.KEYED_SCHEMA if recipe.keyed else do.SCHEMA
    lance.write_dataset(do.arrow(map(row, range(10)), schema), str(root), **recipe.options)


def make(name: str, root: Path) -> Template:
    """Four fragments of ten rows; after version 1 there is fragment 0, after version 2 fragments 0 and 1."""
    recipe = RECIPES[name]
    keys = {"id": dict(do.PRIMARY_KEY)} if recipe.keyed else {}
    _begin(root, recipe)
    past = {1: World(tuple(map(row, range(10))), field_metadata=keys)}
    more = (do.appends(*range(10, 20)), *recipe.early, do.appends(*range(20, 30)), do.appends(*range(30, 40)))
    for deed in (*more, do.configures(CONFIG), do.notes({"a": "0", "b": "0"}), *recipe.late):
        assert deed.act is not None
        before = past[max(past)]
        deed.act(open_stock(str(root)))
        for version in range(max(past) + 1, head(root) + 1):
            past[version] = deed.effect(before, past)
    version = plant(root, ops.ReserveFragments(RESERVED), uuid="reserved", effect=ops.ReserveFragments(RESERVED))
    past[version] = past[version - 1]
    return Template(name, root, past)


class Workshop:
    """Hands out copies of templates and operations captured against them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._templates: dict[str, Template] = {}
        self._captured: dict[tuple[str, Deed | str, str], Captured] = {}
        self._count = 0

    def template(self, name: str) -> Template:
        if name not in self._templates:
            self._templates[name] = make(name, self._root / f"template {name}")
        return self._templates[name]

    def copy(self, name: str, to: Path) -> Template:
        found = self.template(name)
        shutil.copytree(found.root, to)
        return found

    def captured(self, name: str, deed: Deed, side: str) -> Captured:
        """The operation of a deed against the latest version of a template. The two sides share no file."""
        key = (name, str(deed), side)
        if key not in self._captured:
            self._captured[key] = self.capture(self.template(name), deed, side)
        return self._captured[key]

    def capture(self, template: Template, deed: Deed, side: str) -> Captured:
        self._count += 1
        scratch = self._root / f"scratch {self._count}"
        if deed.build is not None:
            operation = deed.build(committed(template.root, template.version).manifest)
            return Captured(operation, scratch, ())
        assert deed.act is not None
        if deed.operation == "Rewrite":
            return self._rewrite(template, deed, side, scratch)
        found = capture(template.root, scratch, deed.act, at=deed.at)
        assert found.operation.name == deed.operation, deed
        return found if deed.change is None else replace(found, operation=deed.change(found.operation))

    def _rewrite(self, template: Template, deed: Deed, side: str, scratch: Path) -> Captured:
        """As of the version before ids were set aside; it takes those of its side, as it would have if it had set them aside itself."""
        assert deed.act is not None
        act = deed.act

        def with_ids_of_side(stock: Any) -> None:
            if side == THEIRS:
                plant(scratch, ops.ReserveFragments(SLOT), uuid="slot", effect=ops.ReserveFragments(SLOT))
                stock = open_stock(str(scratch))
            act(stock)

        found = capture(template.root, scratch, with_ids_of_side, at=template.version - 1)
        assert found.operation.name == deed.operation, deed
        return found
