"""The machine's own chance."""

from __future__ import annotations

import uuid

from tiltyard.interfaces import SystemRandomness


def test_uuids_are_random_ones_of_version_4_in_their_usual_form() -> None:
    made = [SystemRandomness().uuid() for _ in range(500)]
    assert len(set(made)) == 500
    found = [uuid.UUID(text) for text in made]
    assert [str(one) for one in found] == made
    assert {(one.version, one.variant) for one in found} == {(4, uuid.RFC_4122)}
    ever = 0
    always = 2**128 - 1
    for one in found:
        ever |= one.int
        always &= one.int
    assert (ever, always) == (0xFFFFFFFFFFFF4FFFBFFFFFFFFFFFFFFF, 0x4 << 76 | 0b10 << 62), "all other bits are chance"
