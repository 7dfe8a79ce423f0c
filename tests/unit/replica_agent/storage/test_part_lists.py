"""The list of a table's parts that the catalog itself puts into JSON."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pyarrow as pa

from tests.support.replicas.datadir import DataDir
from tidelock.csnlog.core.ids import Csn, TableName
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.wire.tables import PartInfo

ORDERS = pa.schema([("id", pa.int64()), ("city", pa.string())])
CITIES = ["Zürich", "a/b%c", None, 'q"?*:=\\[]{}^', "new\nline", "\x01", "東京 #1"]
ITEMS = pa.schema([("id", pa.int64())])


def test_a_list_made_by_the_catalog_is_what_its_rows_say(tmp_path: Path) -> None:
    """Same parts, same order, same fields, whatever the partitions are called, at any CSN."""
    data = DataDir(tmp_path / "r1")
    data.create_table(2, "orders", ORDERS, partition_by=["city"])
    data.create_table(2, "sales.items", ITEMS)
    orders = pa.table({"id": range(len(CITIES)), "city": CITIES}, schema=ORDERS)
    data.insert(3, {"default.orders": orders, "sales.items": pa.table({"id": [1, 2]}, schema=ITEMS)})
    data.insert(4, {"default.orders": orders})
    data.remove(5, data.parts("default.orders")[0].part)
    with contextlib.closing(CatalogReader(data.path)) as reader:
        for csn in (2, 3, 4, 5):
            for table in (TableName("default.orders"), TableName("sales.items")):
                rows = [
                    PartInfo(
                        row.part, row.path, row.rows, row.length, row.checksum,
                        f"{table.replace('.', '/')}/{row.name}",
                    )
                    for row in reader.parts(table, Csn(csn))
                ]  # fmt: skip
                made = msgspec.json.decode(reader.parts_json(table, Csn(csn)), type=list[PartInfo])
                assert made == rows
                assert len(rows) == _count(table, csn)


def _count(table: str, csn: int) -> int:
    if table == "sales.items":
        return int(csn > 2)
    return {2: 0, 3: len(CITIES), 4: 2 * len(CITIES), 5: 2 * len(CITIES) - 1}[csn]
