"""Conditions in which two things must be told apart that the matrix shows together."""

from __future__ import annotations

import pytest

import tiltyard as ty
from tiltyard import ops
from tiltyard.format.values import BasePath


@pytest.mark.parametrize(
    ("mine", "theirs", "names"),
    [
        (BasePath(1, "/a", name="a"), BasePath(1, "/b", name="b"), ("base 1",)),
        (BasePath(1, "/a", name="a"), BasePath(2, "/b", name="a"), ("a",)),
        (BasePath(1, "/a", name="a"), BasePath(2, "/a", name="b"), ("/a",)),
        (BasePath(1, "/a"), BasePath(2, "/b"), ()),
        (BasePath(0, "/a"), BasePath(0, "/b"), ()),
    ],
    ids=["one id", "one name", "one path", "no names", "no ids yet"],
)
def test_two_bases_meet_by_id_by_name_or_by_path(mine: BasePath, theirs: BasePath, names: tuple[str, ...]) -> None:
    verdict = ty.conflicts.resolve(ops.UpdateBases((mine,)), ops.UpdateBases((theirs,)))
    assert isinstance(verdict, ty.conflicts.Incompatible if names else ty.conflicts.Compatible)
    assert verdict.names == names
