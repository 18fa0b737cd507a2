"""What makes several tables of a lake the shards of one: names, and a word in the config of each.

The logical table ``orders`` is a table without rows, the *anchor*: it has the columns and the definition, and it holds the name. Its shards
are ``orders.__shard_0``, ``orders.__shard_1`` and so on. Each says in its config which number of which sharded table it is, so that a table
that got the name in another way is not taken for a shard, and a rebuilt catalog needs nothing but the tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tiltyard.errors import CorruptTable, InvalidInput, NotFound, UnsupportedFeature
from tiltyard.format.keys import primary_key
from tiltyard.format.manifest import Manifest
from tiltyard.format.schema import arrow_from_fields
from tiltyard.lakes.sharded.shard_hash import HASH_VERSION, check_hashable, shard_numbers
from tiltyard.lakes.table_names import logical_name, shown
from tiltyard.table import TableReader

Reader = TypeVar("Reader", bound=TableReader)

DEFINITION: Final = "tiltyard.sharding"
"""The config key of an anchor."""
MEMBERSHIP: Final = "tiltyard.shard"
"""The config key of a shard."""
MOST_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a table is sharded.

    Attributes:
        id: of the logical table; its shards carry it.
        columns: that rows are assigned by.
        shards: how many there are.
    """

    id: str
    columns: tuple[str, ...]
    shards: int

    @classmethod
    def new(
        cls, identity: str, shard_by: str | Sequence[str], shards: int, schema: pa.Schema, primary_key: Sequence[str] | None
    ) -> Sharding:
        """A definition that a caller gives.

        Raises:
            InvalidInput: the columns are not part of the key, so that rows of one key could be in several shards.
            UnsupportedFeature: their type has no hash.
        """
        columns = (shard_by,) if isinstance(shard_by, str) else tuple(shard_by)
        check_hashable(schema, columns)
        made = cls(identity, columns, _count(shards))
        made.check_key(primary_key)
        return made

    def check_key(self, primary_key: Sequence[str] | None) -> None:
        """Refuses a primary key that does not tell the shard."""
        if missing := [column for column in self.columns if column not in (primary_key or ())]:
            raise InvalidInput(
                f"shard_by names {', '.join(missing)}, which is not part of the primary key.",
                argument="shard_by",
                advice="Rows of one key must be in one shard: shard by columns of primary_key.",
            )

    def resized(self, shards: int, identity: str) -> Sharding:
        return replace(self, id=identity, shards=_count(shards))

    @classmethod
    def of(cls, manifest: Manifest, name: str) -> Sharding | None:
        """The definition that an anchor has; None for a table that is not sharded.

        Raises:
            CorruptTable: it cannot be understood, or names columns that cannot be it.
            UnsupportedFeature: a newer release made it.
        """
        text = manifest.config.get(DEFINITION)
        if text is None:
            return None
        try:
            known = json.loads(text)
            version, made = int(known["hash"]), cls(str(known["id"]), tuple(map(str, known["columns"])), _count(int(known["shards"])))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptTable(shown(name), f"its config {DEFINITION} is not a definition of shards") from error
        if version != HASH_VERSION:
            raise UnsupportedFeature(f"{shown(name)} is sharded by version {version} of the hash.", feature=f"shard hash {version}")
        try:
            check_hashable(arrow_from_fields(manifest.fields), made.columns)
            made.check_key(primary_key(manifest.fields))
        except (InvalidInput, UnsupportedFeature) as error:
            raise CorruptTable(shown(name), f"its definition of shards does not fit its columns: {error}") from error
        return made

    def config(self) -> dict[str, str]:
        """What the anchor says."""
        known: dict[str, Any] = {"hash": HASH_VERSION, "id": self.id, "columns": list(self.columns), "shards": self.shards}
        return {DEFINITION: json.dumps(known, separators=(",", ":"))}

    def member_config(self, number: int) -> dict[str, str]:
        """What a shard says."""
        return {MEMBERSHIP: f"{self.id} {number} of {self.shards}"}

    def refuse_other(self, number: int, config: Mapping[str, str], name: str) -> None:
        """Refuses a table that has the name of a shard and is none of this table's.

        Raises:
            CorruptTable: naming what it is.
        """
        found = config.get(MEMBERSHIP)
        if found != self.member_config(number)[MEMBERSHIP]:
            says = "has no shard number" if found is None else f"says it is shard {found}"
            raise CorruptTable(
                f"{shown(name)}", f"it should be shard {number} of {self.shards}, and {says}", advice="Restore it, or drop the whole table."
            )

    def verified(self, number: int, full: str, open_shard: Callable[[], Reader]) -> Reader:
        """A shard, if it is there and one of this table's.

        Raises:
            CorruptTable: it is not.
        """
        try:
            shard = open_shard()
        except NotFound as error:
            table = logical_name(full) or full
            advice = "Restore it from a copy of the catalog, or drop the whole table."
            raise CorruptTable(shown(table), f"its shard {number} of {self.shards} is gone", advice=advice) from error
        self.refuse_other(number, shard._blind()[1].manifest.config, full)
        return shard

    def split(self, rows: pa.Table) -> dict[int, pa.Table]:
        """The rows of each shard that gets some, in their order."""
        numbers = shard_numbers(rows, self.columns, self.shards)
        present, counts = np.unique(numbers, return_counts=True)
        if len(present) <= 1:
            return {int(number): rows for number in present}
        places = np.split(np.argsort(numbers, kind="stable"), np.cumsum(counts)[:-1])
        # Taken, not sliced: pylance panics over slices of structs in structs.
        return {int(number): rows.take(pa.array(mine)) for number, mine in zip(present, places, strict=True)}


def _count(shards: object) -> int:
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MOST_SHARDS:
        raise InvalidInput(f"shards is a whole number from 1 to {MOST_SHARDS:,}, not {shards!r}.", argument="shards")
    return shards
