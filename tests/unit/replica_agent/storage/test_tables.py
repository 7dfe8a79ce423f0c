"""Versions and definitions of tables in memory: they follow what is applied, and are right at older CSNs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidelock.csnlog.core.ids import Csn, ReplicaId, Stamp, TableId
from tidelock.csnlog.core.model import ChangeTable, DefineTable, RecordKind, TidRecord
from tidelock.errors import UnknownTableError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage import tables as module
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replication.core.model import ResolvedRecord

TABLE = TableId("default.t")


class Replica:
    """A catalog, and the tables that it knows."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.tables = Tables(catalog.reader)

    async def define(
        self, csn: int, version: int, table: TableId = TABLE, *, dropped: bool = False, **properties: str
    ) -> None:
        """Apply a record that defines or drops a table, as the agent does: the catalog first."""
        schema = TableSchema.from_request(table, pa.schema([("k", pa.int64())]), [], [], properties)
        entry = DefineTable(table, version, schema.definition())
        if dropped:
            entry = ChangeTable(table, version, {**schema.definition(), "dropped": True})
        forms = jobs.TableForms(entry.definition, schema.arrow_bytes(), schema.common_metadata())
        tid = f"{csn - 1}-r1-1-{csn}"
        applied = jobs.AppliedTid(tid, [entry], None, True)
        record = jobs.AppliedRecord(Csn(csn), csn * 1000, [applied], {(table, version): forms})
        await self.catalog.write(lambda db: jobs.apply(db, [record]))
        tids = (TidRecord(tid=tid, entries=(entry,), holders=(ReplicaId("r1"),)),)
        resolved = ResolvedRecord(
            Csn(csn), RecordKind.COMMIT, ReplicaId("r1"), csn * 1000, tids, Stamp(csn, csn * 1000), "0" * 64
        )
        self.tables.applied([resolved])


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    """An empty catalog."""
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    yield Replica(catalog)
    await catalog.close()


async def test_a_table_is_known_from_its_csn_on(replica: Replica) -> None:
    """Not before, also if somebody has asked for it before it was created."""
    assert replica.tables.version(TABLE, Csn(9)) is None
    await replica.define(5, 0)
    assert [replica.tables.version(TABLE, Csn(csn)) for csn in (4, 5, 6)] == [None, 0, 0]
    with pytest.raises(UnknownTableError):
        replica.tables.schema(TABLE, Csn(4))
    assert replica.tables.schema(TABLE, Csn(5))[0] == 0


async def test_a_new_definition_holds_from_its_csn_on(replica: Replica) -> None:
    """A transaction with an older snapshot has the definition of before, as often as it asks."""
    await replica.define(5, 0, compaction="off")
    assert replica.tables.version(TABLE, Csn(5)) == 0
    await replica.define(8, 1, compaction="on")
    for _ in range(2):
        found = [replica.tables.schema(TABLE, Csn(csn)) for csn in (5, 7, 8, 9)]
        assert [version for version, _ in found] == [0, 0, 1, 1]
        assert [schema.properties["compaction"] for _, schema in found] == ["off", "off", "on", "on"]


async def test_a_table_that_was_gone_in_between(replica: Replica) -> None:
    """It has a version after it was brought back, and is not the one of before for what waits for it."""
    await replica.define(5, 0)
    await replica.define(6, 1)
    await replica.define(7, 2, dropped=True)
    await replica.define(9, 3)
    found = {
        (since, at): replica.tables.version_since(TABLE, Csn(since), Csn(at))
        for since, at in ((5, 6), (6, 6), (6, 7), (6, 9), (7, 9), (9, 9), (4, 6))
    }
    assert found == {(5, 6): 1, (6, 6): 1, (6, 7): None, (6, 9): None, (7, 9): 3, (9, 9): 3, (4, 6): 1}


async def test_the_catalog_is_asked_once_for_each_definition(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another table's definition forgets nothing of this one."""
    asked: list[TableId] = []
    read = type(replica.catalog.reader).versions

    def counting(reader: CatalogReader, name: TableId) -> object:
        asked.append(name)
        return read(reader, name)

    monkeypatch.setattr(type(replica.catalog.reader), "versions", counting)
    await replica.define(5, 0)
    for csn in (5, 6, 7):
        replica.tables.schema(TABLE, Csn(csn))
    other = TableId("default.other")
    await replica.define(8, 0, other)
    replica.tables.schema(TABLE, Csn(8))
    assert asked == [TABLE]


async def test_names_that_nobody_has_defined_do_not_pile_up(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks for one unknown table after the other takes a bounded amount of memory."""
    monkeypatch.setattr(module, "_KEPT", 10)
    await replica.define(5, 0)
    for number in range(35):
        assert replica.tables.version(TableId(f"default.x{number}"), Csn(5)) is None
        assert replica.tables.version(TABLE, Csn(5)) == 0
    assert len(replica.tables._versions) <= 10
