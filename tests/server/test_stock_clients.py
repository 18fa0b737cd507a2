"""Stock pylance and lancedb against a real server process; the same steps against pylance's own server are the reference."""

from __future__ import annotations

import lance
import lancedb
import pyarrow as pa
import pytest
from lance.namespace import RestAdapter

from tests.server.stock_steps import LancedbSteps, PylanceSteps, rest_namespace, results_of, rows_of
from tests.support.lakes import foreign_append
from tests.support.served import Served, served


@pytest.mark.parametrize(
    ("client", "refused"), [(LancedbSteps, {"no table yet", "create twice", "drop twice"}), (PylanceSteps, {"create twice"})]
)
def test_every_step_has_the_result_that_the_reference_has(
    client: type[LancedbSteps] | type[PylanceSteps], refused: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("reference")
    properties = {"root": str(folder / "dir"), "manifest_enabled": "true", "table_version_tracking_enabled": "true"}
    with RestAdapter("dir", properties, port=0) as adapter:
        reference = results_of(client(f"http://127.0.0.1:{adapter.port}").steps())
    assert {step for step, result in reference.items() if isinstance(result, str)} == refused, "all others are done"
    with served(folder / "lake") as server:
        assert results_of(client(server.url).steps()) == reference
        lake = server.lake()
        assert lake.check().ok
        assert {entry.author for entry in lake.history()} == {"anonymous"}


def test_our_own_table_is_read_and_written_by_both(server: Served) -> None:
    lake = server.lake()
    lake.create_table("shop.orders", pa.table({"id": [1]}))
    namespace = rest_namespace(server.url)
    lance.write_dataset(pa.table({"id": [2]}), namespace_client=namespace, table_id=["shop", "orders"], mode="append")
    db = lancedb.connect_namespace("rest", {"uri": server.url})
    db.open_table("orders", namespace_path=["shop"]).add([{"id": 3}])
    lake.table("shop.orders").append(pa.table({"id": [4]}))
    expected = [{"id": number} for number in (1, 2, 3, 4)]
    assert rows_of(lake.table("shop.orders")) == expected
    assert rows_of(lance.dataset(namespace_client=namespace, table_id=["shop", "orders"])) == expected
    assert list(db.list_tables(namespace_path=["shop"]).tables) == ["orders"]


def test_what_is_written_past_the_server_is_read_back(server: Served) -> None:
    """As engines do that open the location and commit there."""
    lake = server.lake()
    lake.create_table("past", pa.table({"id": [1]}))
    namespace = rest_namespace(server.url)
    location = server.post("/v1/table/past/describe", None).json["location"]
    foreign_append(location, 9)
    assert rows_of(lance.dataset(namespace_client=namespace, table_id=["past"])) == [{"id": 1}, {"id": 9}]
    assert lake.history()[0].message.startswith("adopted")


def test_a_declared_table_is_none_until_it_is_written(server: Served) -> None:
    declared = server.post("/v1/table/soon/declare", {"properties": {"a": "b"}})
    assert declared.json["managed_versioning"] is True
    assert server.post("/v1/table/soon/declare", {}).code == 5
    assert server.post("/v1/table/soon/version/list", None).json["versions"] == []
    described = server.post("/v1/table/soon/describe?check_declared=true", None).json
    assert (described["is_only_declared"], described["location"]) == (True, declared.json["location"])
    assert "soon" not in server.lake().tables()
    assert server.post("/v1/table/soon/insert", raw=b"").code == 13
    assert server.post("/v1/table/soon/drop", {}).status == 200
    assert server.post("/v1/table/soon/describe", None).code == 4
    lance.write_dataset(pa.table({"id": [1]}), namespace_client=rest_namespace(server.url), table_id=["soon"])
    assert "soon" in server.lake().tables()


def test_a_version_of_a_table_that_was_made_anew_is_refused(server: Served) -> None:
    """The client's handle is on the table before; the numbers would agree."""
    namespace = rest_namespace(server.url)
    old = lance.write_dataset(pa.table({"id": [1]}), namespace_client=namespace, table_id=["anew"])
    server.lake().drop_table("anew")
    lance.write_dataset(pa.table({"id": [2]}), namespace_client=namespace, table_id=["anew"])
    with pytest.raises((ValueError, OSError, RuntimeError)):
        old.insert(pa.table({"id": [3]}))
    assert rows_of(server.lake().table("anew")) == [{"id": 2}]


def test_shutting_down_finishes_and_says_so(tmp_path_factory: pytest.TempPathFactory) -> None:
    with served(tmp_path_factory.mktemp("stopped") / "lake") as server:
        assert server.get("/healthz").json == {"status": "ok"}
        assert server.get("/readyz").json == {"status": "ready"}
        assert server.rows("/v1/table/t/create", pa.table({"id": [1]})).status == 200
        assert server.stop() == 0
        assert server.lake().table("t").count_rows() == 1
