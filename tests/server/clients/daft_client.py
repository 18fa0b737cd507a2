"""daft reads one table of a lake, and appends to it. ``daft_client.py URL``."""

import json
import sys

import daft
import daft_lance

where = {"table_id": ["people"], "namespace_impl": "rest", "namespace_properties": {"uri": sys.argv[1]}}
daft_lance.write_lance(daft.from_pydict({"id": [2], "name": ["daft"]}), mode="append", **where)
rows = daft_lance.read_lance(**where).to_pydict()
print(json.dumps({"daft": sorted(zip(rows["id"], rows["name"], strict=True))}))
