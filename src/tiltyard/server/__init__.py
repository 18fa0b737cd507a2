"""The server: a lake behind the Lance REST namespace, for clients that know only tables. Needs ``tiltyard[server]``.

A request goes down this list, and its answer back up:

- ``serving``: the process: listens, stops, writes its log as JSON. ``server_options``: what the operator decides.
- ``browser_guard``: keeps pages of other sites out where no token is asked for.
- ``lake_server``: from a request to an operation: limits, principal, roles, turn, thread, audit.
- ``at_once``: when a commit needs no thread.
- ``routes``: every operation with its path, request and role, as data. ``wire``: requests as models, models and errors as answers.
- ``openapi``: the routes as an OpenAPI document, at ``/openapi.json``.
- ``catalog_door``: the catalog for lakes that are opened by the address of a server. ``written_records``: what they may write there.
- ``commit_offers``: commits that the server makes for these lakes, those who wait in one version.
- ``authentication``: who asks, by a token or a JWT. ``tokens``: tokens in the catalog. ``principals``: roles by names of tables.
- ``vending``: which storage options a client is told. ``sts``: credentials that end by themselves, from an S3 store.
- ``console/``: pages about the lake for a browser, on the same port.
- ``table_turns``: the queue at each table, so that no client starves. ``settling``: bookkeeping of commits, after the answer.
- ``upkeep_runs``: compaction, indices and cleanup when they are due. ``upkeep_policies``: what is to be done, from a TOML file.
- ``audit``: a line for each request. ``server_metrics``: figures.

What is done is done by ``lakes/namespace.py``; nothing here decides about a commit. Failures are errors of ``lance_namespace`` with a code;
the status of HTTP follows from it. Nothing else in the package imports this one.
"""
