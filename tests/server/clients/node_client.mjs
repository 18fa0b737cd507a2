// lancedb in Node reads one table of a lake, and adds to it: node node_client.mjs URL
import { createRequire } from "node:module";
const require = createRequire(process.cwd() + "/");
const lancedb = require("@lancedb/lancedb");

const db = await lancedb.connectNamespace("rest", { uri: process.argv[2] });
const table = await db.openTable("people");
await table.add([{ id: 2, name: "node" }]);
const rows = await table.query().toArray();
console.log(JSON.stringify({ node: rows.map((row) => [Number(row.id), row.name]).sort() }));
