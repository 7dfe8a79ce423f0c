"""Collection on one replica: the deleted rows and files, their order, and the rest of an interrupted run."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st

from tests.support.clusters.log_node import make_cluster
from tests.support.rows import settings
from tidelock.csnlog import faults
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import AddPart, ChangeTable, DefineTable, Entry, RemovePart
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore
from tidelock.errors import SnapshotTooOldError, UnavailableError
from tidelock.replica_agent.readers.catalog import SnapshotCatalog
from tidelock.replica_agent.readers.streams import Streams
from tidelock.replica_agent.snapshots.garbage_collection import GarbageCollection
from tidelock.replica_agent.snapshots.retention_clock import RetentionClock
from tidelock.replica_agent.storage import catalog_garbage as collect
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_schema import SCHEMA
from tidelock.replica_agent.storage.unused_files import remove_late
from tidelock.replication.core.horizon_rules import collectable
from tidelock.replication.core.model import Location, PartKind, PartMeta
from tidelock.replication.partfs import PartFs

T, KEPT = TableId("default.t"), TableId("default.kept")
PACK = "packs/00/r1-1-100.pack"


class Replica:
    """A data directory, its catalog, and the horizon and tail in ZooKeeper."""

    def __init__(self, path: Path, store: MemoryStore) -> None:
        self.path, self.store = path, store
        self.files = PartFs(path)
        self.files.open()
        self.catalog = Catalog(path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
        self.collected = 0
        self.collection = self.new_collection()

    def new_collection(self) -> GarbageCollection:
        """Return the collection of another boot."""

        def count(parts: int) -> None:
            self.collected += parts

        made = settings(collect_batch_parts=2)
        retention = RetentionClock(self.catalog.reader, time.monotonic, lambda: int(time.time() * 1000))
        newest_before = retention.newest_before
        return GarbageCollection(made, self.path, self.catalog, self.files, self.store, count, newest_before)

    async def add(self, csn: int, number: int, table: TableId = T, **where: Any) -> AddPart:
        """Stage a part with its file; return its entry."""
        file = str(where.pop("file", f"parts/{number:02d}/r1-1-{number}.parquet"))
        meta = PartMeta(PartId(f"r1-1-{number}"), table, "", 5, 10, f"{number:032x}", **where)
        (self.path / file).touch()
        staged = jobs.StagedPart(meta, Location(file, 0, 10, b"\0" * 8), tid(csn))
        await self.catalog.write(lambda db: jobs.add_staged(db, [staged], []))
        return AddPart(table, meta.part, "", 5, 10, meta.checksum)

    async def apply(self, csn: int, *entries: Entry) -> None:
        """Apply a record of one transaction, whose time is a second per CSN."""
        tables: dict[tuple[str, int], jobs.TableForms] = {
            (one.table, one.version): jobs.TableForms(one.definition, b"", b"")
            for one in entries
            if isinstance(one, DefineTable)
        }
        done = jobs.AppliedTid(str(tid(csn)), entries, None, True)
        record = jobs.AppliedRecord(Csn(csn), csn * 1000, [done], tables)
        await self.catalog.write(lambda db: jobs.apply(db, [record]))

    async def says(self, *, horizon: int, tail: int = 0) -> None:
        """Let ZooKeeper show a horizon and a tail."""
        ops = (
            SetData(tree.HORIZON, codec.encode_csn(Csn(horizon))),
            SetData(tree.TAIL, codec.encode_csn(Csn(tail))),
        )
        assert isinstance(await self.store.multi(ops), Ok)

    def parts(self, csn: int, table: TableId = T) -> list[str]:
        """Return the numbers of the parts that are visible at a CSN."""
        return [part.part.rpartition("-")[2] for part in self.catalog.reader.parts(table, Csn(csn))]

    def on_disk(self) -> set[str]:
        """Return the files that exist."""
        return {
            str(path.relative_to(self.path))
            for top in ("parts", "packs")
            for path in (self.path / top).rglob("*")
            if path.is_file()
        }


def tid(csn: int) -> Tid:
    """Return the transaction that is committed at a CSN."""
    return Tid(Csn(csn - 1), ReplicaId("r1"), 1, csn)


def removes(number: int, table: TableId = T) -> RemovePart:
    """Return the entry that removes a part."""
    return RemovePart(table, PartId(f"r1-1-{number}"))


def defines(table: TableId, version: int = 0, **properties: str) -> DefineTable:
    """Return the entry that defines a table."""
    return DefineTable(table, version, {"name": table, "properties": properties})


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[Replica]:
    """A replica on a new cluster."""
    store = MemoryEnsemble().store("r1")
    await make_cluster(store)
    made = Replica(tmp_path, store)
    yield made
    await made.catalog.close()
    made.files.close()


async def e1(replica: Replica) -> None:
    """Parts 1 (created at 5, removed at 20) and 2 (created at 20)."""
    await replica.apply(4, defines(T))
    await replica.apply(5, await replica.add(5, 1))
    await replica.apply(20, await replica.add(20, 2), removes(1))


async def test_a_part_goes_by_its_removal(replica: Replica) -> None:
    """The counter-example (rule horizon): what was created long ago is read at CSN 10."""
    await e1(replica)
    await replica.says(horizon=10)
    await replica.collection.run()
    assert replica.parts(10) == ["1"]
    with pytest.raises(SnapshotTooOldError):
        replica.catalog.reader.require_kept(Csn(9))
    await replica.says(horizon=20)
    await replica.collection.run()
    assert (replica.parts(20), replica.collected) == (["2"], 1)
    assert replica.on_disk() == {"parts/02/r1-1-2.parquet"}
    assert replica.catalog.reader.files()[1] == []  # no undo row is left


async def test_a_pack_stays_while_any_part_lies_in_it(replica: Replica) -> None:
    """Also one of an undecided transaction."""
    await replica.apply(4, defines(T))
    await replica.apply(5, await replica.add(5, 1, file=PACK), await replica.add(5, 2, file=PACK))
    undecided = await replica.add(90, 3, file=PACK)
    await replica.apply(6, removes(1))
    await replica.says(horizon=6)
    await replica.collection.run()
    assert (replica.parts(6), replica.on_disk()) == (["2"], {PACK})
    await replica.apply(7, removes(2))
    await replica.says(horizon=7)
    await replica.collection.run()
    assert replica.on_disk() == {PACK}
    await replica.catalog.write(lambda db: jobs.drop_parts(db, [undecided.part]))
    assert replica.catalog.late_removals == set()


async def test_the_horizon_is_noted_before_anything_goes(replica: Replica) -> None:
    """A run that is interrupted has refused the CSN already; the next run, of any boot, continues."""
    await e1(replica)
    await replica.says(horizon=20)
    with faults.armed("agent.collect.before", "once"), pytest.raises(UnavailableError):
        await replica.collection.run()
    with (
        pytest.raises(SnapshotTooOldError),
        closing(SnapshotCatalog(replica.path)) as reader,
        reader.serving(Csn(10)),
    ):
        pass
    assert replica.parts(10) == ["1"]
    await replica.new_collection().run()
    assert replica.parts(10) == []


async def test_files_whose_rows_are_gone_go_later(replica: Replica) -> None:
    """The run is interrupted after the rows, or their deletion is stored and its answer lost."""
    await e1(replica)
    await replica.says(horizon=20)
    with faults.armed("agent.collect.after", "once"), pytest.raises(UnavailableError):
        await replica.collection.run()
    assert replica.parts(10) == []
    assert len(replica.on_disk()) == 2
    await remove_late(replica.catalog, replica.files)
    assert replica.on_disk() == {"parts/02/r1-1-2.parquet"}


async def test_what_is_undecided_stays(replica: Replica) -> None:
    """A part that an open transaction is to remove does not count as removed."""
    await replica.apply(4, defines(T))
    await replica.apply(5, await replica.add(5, 1))
    await replica.catalog.write(lambda db: jobs.mark_removed(db, str(tid(90)), ["r1-1-1"]))
    await replica.says(horizon=5)
    await replica.collection.run()
    assert replica.parts(5) == ["1"]


async def two_tables(replica: Replica) -> None:
    """Make two tables with a part that is removed at CSN 8; one table keeps its history forever."""
    await replica.apply(4, defines(T), defines(KEPT, retention_s="9999999999"))
    await replica.apply(5, await replica.add(5, 1), await replica.add(5, 2, KEPT))
    await replica.apply(8, removes(1), removes(2, KEPT))


async def test_a_table_keeps_its_own_history(replica: Replica) -> None:
    """Its history begins at the horizon of its first note; an error for another table names this table."""
    await two_tables(replica)
    await replica.says(horizon=8)
    await replica.collection.run()
    reader = replica.catalog.reader
    assert (replica.parts(7), replica.parts(7, KEPT)) == ([], ["2"])
    assert reader.keeps(Csn(7), KEPT)
    reader.require_kept(Csn(7), KEPT)
    for table in (T, None):
        with pytest.raises(SnapshotTooOldError, match=r"horizon 8.*longer retention.*default\.kept"):
            reader.require_kept(Csn(7), table)


async def test_a_dropped_table_keeps_its_own_history(replica: Replica) -> None:
    """Its parts and definitions stay for as long as the table asked for, and can be brought back."""
    await two_tables(replica)
    await replica.apply(9, await replica.add(9, 3, KEPT))
    last = defines(KEPT, 1, retention_s="9999999999")
    await replica.apply(10, ChangeTable(KEPT, 1, {**last.definition, "dropped": True}))
    await replica.says(horizon=8)
    await replica.collection.run()
    await replica.says(horizon=10)
    await replica.collection.run()
    assert (replica.parts(7, KEPT), replica.parts(9, KEPT), replica.parts(10, KEPT)) == (["2"], ["3"], [])
    replica.catalog.reader.require_kept(Csn(9), KEPT)
    assert replica.catalog.reader.table(KEPT, Csn(9)) is not None


async def test_a_table_that_loses_its_retention_is_as_all_others(replica: Replica) -> None:
    """Its history is refused in the same transaction from which on it is deleted."""
    await two_tables(replica)
    await replica.says(horizon=8)
    await replica.collection.run()
    await replica.apply(9, defines(KEPT, 1))
    await replica.collection.run()
    assert replica.catalog.reader.table_horizons() == {}
    assert replica.parts(7, KEPT) == []


async def test_a_retention_that_begins_later_begins_at_the_horizon(replica: Replica) -> None:
    """A CSN whose parts were deleted before is not promised."""
    await e1(replica)
    await replica.says(horizon=20)
    await replica.collection.run()
    await replica.apply(21, defines(T, 1, retention_s="9999999999"))
    await replica.collection.run()
    assert replica.catalog.reader.table_horizons() == {T: 20}
    await replica.apply(22, removes(2))
    await replica.says(horizon=22)
    await replica.collection.run()
    assert replica.parts(21) == ["2"]


async def test_times_and_definitions_go_when_nobody_asks_for_them(replica: Replica) -> None:
    """The time of a CSN stays while a part was created at it, and that of the last one below the horizon."""
    await replica.apply(2, defines(T))
    await replica.apply(3, await replica.add(3, 1))
    await replica.apply(4, await replica.add(4, 2))
    await replica.apply(5, defines(T, 1), removes(1))
    await replica.apply(7, defines(T, 2))
    await replica.says(horizon=6)
    await replica.collection.run()
    reader = replica.catalog.reader
    assert [reader.csn_at(csn * 1000) for csn in (2, 3, 4, 5, 6, 7)] == [None, None, 4, 5, 5, 7]
    tables = [row.version for csn in (6, 7) if (row := reader.table(T, Csn(csn)))]
    assert tables == [1, 2]
    assert reader.table(T, Csn(4)) is None


async def test_manifests_go_below_the_tail(replica: Replica) -> None:
    """Every replica has applied what they list by then; no snapshot reads them."""
    kind: PartKind = "manifest"
    for csn in (5, 6):
        await replica.add(csn, csn, TableId(""), kind=kind)
        await replica.apply(csn)
    await replica.says(horizon=0, tail=6)
    await replica.collection.run()
    assert replica.on_disk() == {"parts/06/r1-1-6.parquet"}
    assert replica.catalog.reader.meta("tail") == 6


async def test_a_part_that_is_collected_while_it_is_opened_is_too_old(replica: Replica) -> None:
    """Not "standby", which some settings of readers turn into missing rows."""
    await e1(replica)
    with closing(SnapshotCatalog(replica.path)) as catalog:
        counters: Any = None
        streams = Streams(
            data_dir=replica.path,
            catalog=catalog,
            link=counters,
            counters=counters,
            chunk_bytes=10,
            ahead_bytes=10,
            threads=1,
            footers_max=10,
        )
        with catalog.serving(Csn(10)):
            assert catalog.visible_part(PartId("r1-1-1"), T, Csn(10)) is not None
        await replica.says(horizon=20)
        await replica.collection.run()
        with pytest.raises(SnapshotTooOldError):
            streams._open(PartId("r1-1-1"), (Csn(10), T))


@settings_of_test(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from([T, KEPT]), st.none() | st.integers(2, 9)), max_size=8),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_the_statement_is_the_rule(
    removals: list[tuple[TableId, int | None]], horizon: int, own: int
) -> None:
    """The SQL deletes the parts that `collectable` accepts, by the horizon of the table."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        jobs.set_meta(db, horizon=horizon)
        db.execute("INSERT INTO table_horizons VALUES (?, ?)", (KEPT, own))
        db.executemany(
            "INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn, "
            "removal_tid, removal_csn, kind, state) "
            "VALUES (?, ?, '', 1, 1, '', 't', 1, 't', ?, 'part', 'held')",
            [(str(number), table, csn) for number, (table, csn) in enumerate(removals)],
        )
        collect.collect_parts(db, [PartId(str(number)) for number in range(len(removals))])
        left = {int(part) for (part,) in db.execute("SELECT part FROM parts")}
    for number, (table, csn) in enumerate(removals):
        floor = Csn(min(horizon, own) if table == KEPT else horizon)
        assert (number not in left) == collectable(None if csn is None else Csn(csn), floor)
