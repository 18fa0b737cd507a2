"""A lake as a Lance Namespace: other Lance clients list its tables and open them by name, at the version the catalog has.

Such a client asks for versions here instead of listing a directory, and has its own commits published here. The operations are in
``lakes/namespaces``, by subject.
"""

from __future__ import annotations

from tiltyard.lakes.namespaces.namespace_batches import BatchOperations
from tiltyard.lakes.namespaces.namespace_data import DataOperations
from tiltyard.lakes.namespaces.namespace_query import QueryOperations
from tiltyard.lakes.namespaces.namespace_refs import RefOperations
from tiltyard.lakes.namespaces.namespace_tables import TableOperations


class LakeNamespace(TableOperations, RefOperations, DataOperations, QueryOperations, BatchOperations):
    """The tables of a lake for ``lance.dataset(namespace_client=..., table_id=[...])``. Made by ``Lake.namespace``, or from strings:
    ``lancedb.connect_namespace("tiltyard", {"uri": "s3://bucket/lake"})``, after ``import tiltyard``.

    It always shows one line of history: as it is at each moment, or as it was at one snapshot.

    Args:
        lake: an open lake, or where one is, as for ``Lake.open``.
        at: a snapshot, tag or moment, to be read only; the latest state at each moment by default. Digits as text are a snapshot.
        branch: of the lake; by default the one that an open lake is on.
        uri: where the lake is, instead of ``lake``: what clients of namespaces call it.

    Raises:
        NotFound: there is no such lake, branch, snapshot or tag.
    """
