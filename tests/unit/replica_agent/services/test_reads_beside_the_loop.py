"""Reads of the catalog that grow with the parts of a table: each runs in a thread, beside the event loop."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from aiohttp.test_utils import make_mocked_request

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import DefineTable
from tidelock.errors import CorruptError
from tidelock.replica_agent.api.tables import TableRoutes
from tidelock.replica_agent.services.administration import AdministrationService
from tidelock.replica_agent.sql.mutation import DeleteRows
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.tables import Tables
from tidelock.replica_agent.tables.schema import ColumnLimits, TableSchema
from tidelock.replica_agent.transactions.statements.mutations import Mutations

TABLE = TableId("default.t")
SCHEMA = TableSchema.from_request(
    TABLE,
    pa.schema([("k", pa.int64())]),
    [],
    [],
    {},
    derivation=None,
    limits=ColumnLimits(columns=10),
    retention_s_min=1.0,
)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog with a table at CSN 2."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    definition = DefineTable(TABLE, 0, SCHEMA.definition())
    forms = jobs.TableForms(definition.definition, SCHEMA.arrow_bytes(), SCHEMA.common_metadata())
    tids = [jobs.AppliedTid("0-r1-1-9", [definition], None, True)]
    record = jobs.AppliedRecord(Csn(2), 2000, tids, {(TABLE, 0): forms})
    await made.write(lambda db: jobs.apply(db, [record]))
    yield made
    await made.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads in which parts are counted, listed and looked up."""
    seen: list[int] = []

    def noting(name: str) -> None:
        work = getattr(CatalogReader, name)

        def noted(reader: CatalogReader, *args: Any) -> Any:
            seen.append(threading.get_ident())
            return work(reader, *args)

        monkeypatch.setattr(CatalogReader, name, noted)

    for name in ("totals", "parts", "parts_json", "part"):
        noting(name)
    return seen


def only(kind: type, **given: object) -> Any:
    """Return a service that has these parts and no others."""
    return kind(**dict.fromkeys((one.name for one in dataclasses.fields(kind)), None) | given)


@pytest.mark.parametrize("route", ["list", "show", "show_inside", "parts"])
async def test_a_description_of_tables_holds_up_no_request(
    catalog: Catalog, threads: list[int], route: str
) -> None:
    """20,000 parts take 7 ms to count, and a cluster has hundreds of tables."""

    async def require_table(csn: Csn, name: str) -> TableId:
        assert (csn, name) == (2, TABLE)
        return TABLE

    service = only(
        AdministrationService,
        catalog=catalog,
        reader=catalog.reader,
        tables=Tables(catalog.reader),
        reads=SimpleNamespace(require_table=require_table),
        waiters=CsnWaiters(Csn(2)),
        transactions=SimpleNamespace(
            find=lambda tid: SimpleNamespace(tid=Tid.parse(tid), staged=SimpleNamespace(definitions=[]))
        ),
    )
    names = {"table": TABLE, "tid": "2-r1-1-1"}
    request = make_mocked_request("GET", f"/?table={TABLE}", match_info=names)
    answered = await getattr(TableRoutes(service, cast("Any", None)), route)(request)
    assert answered.status == 200
    assert threads
    assert threading.get_ident() not in threads


async def test_a_statement_looks_up_what_it_removes(catalog: Catalog, threads: list[int]) -> None:
    """20,000 parts take a quarter of a second."""
    gone = [PartId("r1-1-1")]

    @contextlib.asynccontextmanager
    async def mutate(_: object) -> AsyncIterator[object]:
        yield SimpleNamespace(affected=SimpleNamespace(parts=gone))

    async def write_out(_: object) -> None:
        pass

    mutations = only(
        Mutations,
        catalog=catalog,
        tables=SimpleNamespace(seen=lambda *_: SimpleNamespace(schema=lambda _: (0, SCHEMA))),
        staging=SimpleNamespace(write_out=write_out),
        sql=SimpleNamespace(mutate=mutate),
    )
    tx: Any = SimpleNamespace(
        tid=Tid(Csn(2), ReplicaId("r1"), 1, 1),
        staged=SimpleNamespace(adopted=SimpleNamespace(tids=set()), definitions=[]),
    )
    with pytest.raises(CorruptError, match="r1-1-1 is gone from the catalog"):
        await mutations._once(tx, TABLE, cast("Any", DeleteRows("true")), Csn(2), None)
    assert threads
    assert threading.get_ident() not in threads


async def test_the_number_of_tables_is_counted_without_their_definitions(catalog: Catalog) -> None:
    """Each answer of status has it."""
    assert catalog.reader.table_names(Csn(1)) == {}
    assert catalog.reader.table_names(Csn(2)) == {row.id: row.name for row in catalog.reader.tables(Csn(2))}
    assert [*catalog.reader.table_names(Csn(2))] == [TABLE]
