"""DuckDB with its Lance extension, and polars by way of pylance: each reads and writes one table of a lake. ``duckdb_polars.py URL``."""

import json
import sys
from pathlib import Path

import duckdb
import duckdb_extension_lance
import lance
import polars
from lance.namespace import RestNamespace

url = sys.argv[1]
connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
extension = next(Path(duckdb_extension_lance.__file__).parent.rglob("*.duckdb_extension"))
connection.execute(f"LOAD '{extension}'")
connection.execute(f"ATTACH '$' AS lake (TYPE LANCE, ENDPOINT '{url}')")
connection.execute("INSERT INTO lake.main.people VALUES (2, 'duck')")
seen = connection.execute("SELECT id, name FROM lake.main.people ORDER BY id").fetchall()

namespace = RestNamespace(uri=url)
there = lance.dataset(namespace_client=namespace, table_id=["people"])
rows = polars.DataFrame({"id": [3], "name": ["polar bear"]}).to_arrow().cast(there.schema)
lance.write_dataset(rows, namespace_client=namespace, table_id=["people"], mode="append")
frame = polars.from_arrow(lance.dataset(namespace_client=namespace, table_id=["people"]).to_table())
print(json.dumps({"duckdb": seen, "polars": sorted(frame.rows())}))
