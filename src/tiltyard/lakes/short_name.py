"""The short name of namespaces that are made from strings: ``lancedb.connect_namespace("tiltyard", {"uri": "s3://bucket/lake"})``.

The registry of such names is ``lance_namespace``, which takes longer to import than all of this package, and which most programs never
need. So it is not imported for the name; it learns it when it is imported, if it ever is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

NAME: Final = "tiltyard"
_REGISTRY: Final = "lance_namespace"
_CLASS: Final = "tiltyard.lakes.namespace.LakeNamespace"


def register() -> None:
    """Has the registry know the name, now if it is there, or as soon as it is imported."""
    registry = sys.modules.get(_REGISTRY)
    if registry is not None:
        _tell(registry)
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


def _tell(registry: ModuleType) -> None:
    """A registry that is only half imported has no such function yet, and one of another release may have none."""
    told = getattr(registry, "register_namespace_impl", None)
    if told is not None:
        told(NAME, _CLASS)


class _Watch(MetaPathFinder):
    """Sees the registry being imported, once, and leaves the import itself to the other finders."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _REGISTRY:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        loader = None if spec is None else spec.loader
        if loader is not None:
            real = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                real(module)
                _tell(module)

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
