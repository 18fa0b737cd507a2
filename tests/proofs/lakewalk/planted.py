"""Bugs that walks must find: every way in which lakes lost data, planted again in this process.

The list is ``tools/mutant_list/lakes.toml``. Functions of the package get the code that the changed text compiles to, so that everybody who
imported them has the bug, and nobody does afterwards.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from tools.mutants import PACKAGE, Mutant, mutated_files, read_list

_FORWARD = "create_table 5 write_rows 8 begin 5 work 6 commit 6 create_branch 4 fast_forward 9 hold_table 4 use_held 6"
_TORN = "create_table 8 write_rows 8 create_branch 4 fast_forward 12 check 3 hold_table 2"
_AGAIN = "write_rows 7 begin 6 work 7 commit 8 create_branch 5 recreate_branch 8 hold_table 3 use_held 4"
_COPIES = "create_table 8 write_rows 2 copy_catalog 5 put_back_copy 7 cleanup 9 pass_time 2 create_branch 1"
_ANEW = "create_table 3 lose_catalog 6 open_lost 8 register_lost 9 cleanup 9 pass_time 2"
_LOST = "create_table 2 write_rows 2 lose_catalog 6 open_lost 8 check 5"
_DOORS = "create_table 3 write_rows 3 drop_table 1 other_door 8 cleanup 2"


@dataclass(frozen=True, slots=True)
class Plant:
    """A bug and the walks that find it.

    Attributes:
        deeds: what walks do, each with how often.
        shown: words of the failure, one of which must be in it.
        walks: how many walks of ``steps`` steps it may take.
        seeds: walks that found it, to begin with; if the code changes others will.
    """

    deeds: str
    shown: tuple[str, ...]
    walks: int = 20
    steps: int = 40
    seeds: tuple[int, ...] = ()


PLANTS: Final = {
    "lake-forward-under-a-transaction": Plant(_FORWARD, ("must have been refused", "on main holds"), 40, seeds=(28, 33)),
    "lake-branch-made-again": Plant(_AGAIN, ("must have been refused",), 40, seeds=(3,)),
    "lake-two-lakes-with-one-root": Plant(_DOORS, ("same root was not refused",)),
    "lake-restored-catalog-sweeps": Plant(_COPIES, ("which is gone",), 30, seeds=(3,)),
    "lake-registered-anew-is-swept": Plant(_ANEW, ("which is gone", "cannot be read"), 30),
    "lake-lost-catalog-is-an-empty-lake": Plant(_LOST, ("check says ok",)),
    "lake-second-catalog-hides-the-lake": Plant(_DOORS, ("second catalog was not refused",)),
    "lake-forward-in-two-steps": Plant(_TORN, ("no state that it may be in", "false alarm", "cannot be read"), 40, seeds=(15,)),
    "lake-other-root": Plant(_DOORS, ("other root was not refused",), 30, seeds=(4,)),
}


def mutant_of(name: str) -> Mutant:
    return next(one for one in read_list() if one.id == name)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The package with a bug in it, as long as it takes."""
    before: list[tuple[FunctionType, CodeType]] = []
    for file, text in mutated_files(mutant, lambda one: (PACKAGE / one).read_text()).items():
        module = importlib.import_module("tiltyard." + file.removesuffix(".py").replace("/", "."))
        changed = dict(_codes(compile(text, str(PACKAGE / file), "exec")))
        for name, function in _functions(module):
            code = changed.get(name)
            if code is not None and code.co_freevars == function.__code__.co_freevars:
                before.append((function, function.__code__))
                function.__code__ = code
    try:
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one.co_qualname, one
            yield from _codes(one)


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Functions of a module and methods of its classes, by their qualified names."""
    for value in vars(module).values():
        members: list[Any] = [value, *vars(value).values()] if isinstance(value, type) else [value]
        for member in members:
            plain = getattr(member, "__func__", getattr(member, "fget", member))
            if isinstance(plain, FunctionType) and plain.__module__ == module.__name__:
                yield plain.__qualname__, plain
