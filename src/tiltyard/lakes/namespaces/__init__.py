"""The operations of the Lance Namespace on a lake, by subject. ``lakes/namespace.py`` puts them together.

- ``namespace_base``: what all operations share: the lake, the view, how an id becomes a name, and which error a client is told.
- ``arrow_json``: Arrow schemas in the JSON form of the protocol.
- ``declared_tables``: tables that a client has announced and not written yet.
- ``namespace_tables``: namespaces; tables by name: list, describe, declare, drop, rename, register.
- ``namespace_versions``: versions of one table: list, describe, publish what a client staged, adopt what was written past the catalog.
- ``known_heads``: tables that were published to lately, which the next version need not look up.
- ``publish_staged``: how a version that a client staged gets its number and its name.
- ``collecting_namespace``: keeps what stock clients commit, for a transaction over several tables.
- ``namespace_batches``: versions of several tables in one commit, and what became of it.
- ``namespace_refs``: tags, branches and indices of one table.
- ``namespace_data``: rows and columns, for clients without access to the store.
- ``namespace_query``: reading rows: filters, vectors, full text.

Each operation takes the request of ``lance_namespace`` and gives its response. What fails is an error of ``lance_namespace`` with a
code, or one of ours, which ``told`` translates.
"""
