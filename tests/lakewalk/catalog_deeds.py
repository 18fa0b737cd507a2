"""What befalls a catalog as a whole: copied, lost, put back, opened by another door."""

from __future__ import annotations

from random import Random

from tests.lakewalk.acting import Walk, deed


@deed(1)
def copy_catalog(walk: Walk, random: Random) -> str:
    return ""
