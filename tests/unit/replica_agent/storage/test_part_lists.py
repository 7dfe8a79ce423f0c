"""Lists of a table's parts: that of the catalog in JSON is right, and none reads what is long removed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.wire.ids import TableName
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
            for table in (TableId("default.orders"), TableId("sales.items")):
                rows = [
                    PartInfo(
                        row.part, row.path, row.rows, row.length, row.checksum,
                        f"{table.replace('.', '/')}/{row.name}", row.length,
                    )
                    for row in reader.parts(table, Csn(csn))
                ]  # fmt: skip
                made = msgspec.json.decode(
                    reader.parts_json(table, TableName(table), Csn(csn)), type=list[PartInfo]
                )
                assert made == rows
                assert len(rows) == _count(table, csn)


def _count(table: str, csn: int) -> int:
    if table == "sales.items":
        return int(csn > 2)
    return {2: 0, 3: len(CITIES), 4: 2 * len(CITIES), 5: 2 * len(CITIES) - 1}[csn]


def _steps(reader: CatalogReader, ask: Callable[[CatalogReader, TableId, Csn], object], csn: int) -> int:
    """Return how many steps of SQLite's machine a list takes."""
    steps = itertools.count()
    reader._db.set_progress_handler(lambda: next(steps) < 0, 1)
    ask(reader, TableId("default.t"), Csn(csn))
    reader._db.set_progress_handler(None, 1)
    return next(steps)


LISTS: dict[str, Callable[[CatalogReader, TableId, Csn], object]] = {
    "parts": CatalogReader.parts,
    "json": lambda reader, table, csn: reader.parts_json(table, TableName(table), csn),
    "partition": lambda reader, table, csn: reader.partition(table, "", csn),
    "partitions": CatalogReader.partitions,
    "totals": CatalogReader.totals,
}


@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
def test_a_list_does_not_walk_the_parts_that_were_removed_before(
    tmp_path: Path, ask: Callable[[CatalogReader, TableId, Csn], object]
) -> None:
    """A table that keeps its history has mostly parts that compaction has replaced."""
    data = DataDir(tmp_path / "r1")
    data.create_table(2, "t", ITEMS)
    data.insert(3, {"default.t": pa.table({"id": [1]}, schema=ITEMS)})
    removed = 2_000
    with contextlib.closing(CatalogReader(data.path)) as reader:
        few = _steps(reader, ask, 3)
        assert few > 20
    with data.sql() as db:
        [row] = db.execute("SELECT * FROM parts").fetchall()
        names = [name for _, name, *_ in db.execute("PRAGMA table_info(parts)")]
        for number in range(removed):
            gone = dict(zip(names, row, strict=True))
            gone |= {"part": f"x{number}", "creation_csn": 4 + number, "removal_csn": 5 + number}
            gone |= {"removal_tid": f"4-r1-1-{number}"}
            db.execute(f"INSERT INTO parts VALUES ({', '.join('?' * len(names))})", [*gone.values()])
    data.set(snapshot_csn=removed + 5)
    with contextlib.closing(CatalogReader(data.path)) as reader:
        assert len(reader.parts(TableId("default.t"), Csn(removed + 5))) == 1
        assert len(reader.parts(TableId("default.t"), Csn(1_000))) == 2
        assert _steps(reader, ask, removed + 5) < 2 * few
