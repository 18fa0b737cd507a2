"""Which tables a request is about: at which it takes its turn, and what the parts of a batch need of whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tiltyard.lakes.table_names import JOINT
from tiltyard.server.routes import Role, RouteSpec
from tiltyard.server.table_turns import branched


def batched(model: Any, spec: RouteSpec) -> list[tuple[Role, list[str]]]:
    """What the parts of a batch need, each for its own table."""
    if spec.operation == "batch_create_table_versions":
        return [(Role.WRITER, [part for part in entry.id if part]) for entry in model.entries]
    needed: list[tuple[Role, list[str]]] = []
    for entry in model.operations:
        for name, role in (
            ("declare_table", Role.WRITER),
            ("create_table_version", Role.WRITER),
            ("delete_table_versions", Role.MAINTAINER),
            ("deregister_table", Role.MAINTAINER),
        ):
            part = getattr(entry, name)
            if part is not None:
                needed.append((role, [piece for piece in part.id or () if piece]))
    return needed


def tables_of(model: Any, spec: RouteSpec, parts: Sequence[str]) -> tuple[str, ...]:
    """The tables at which a request takes turns, each once."""
    if not spec.takes_turns:
        return ()
    if spec.scope != "batch":
        return (branched(getattr(model, "branch", None), JOINT.join(parts)),)
    return tuple({JOINT.join(names) for _, names in batched(model, spec)})
