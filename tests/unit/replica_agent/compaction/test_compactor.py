"""The background task of compaction and an operator's request, with a catalog and merges made by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.replicas.datadir import TIME_MS, DataDir, added, applied
from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.model import Entry, RemovePart
from tidelock.errors import CorruptError, SerializationConflictError, UnavailableError
from tidelock.replica_agent.compaction.compactor import Compactor
from tidelock.replica_agent.compaction.planner import Group
from tidelock.replica_agent.compaction.survey import Survey, limits_of
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replica_agent.tables.schema import TableSchema

TABLE = TableId("default.t")
SCHEMA = pa.schema([("k", pa.int64()), ("y", pa.int32())])
SETTINGS: dict[str, Any] = {
    "compaction_parts_min": 2,
    "compaction_retry_wait_max_s": 40.0,
    "retry_wait_max_s": 0.001,
}


class World:
    """One agent's compaction without processes: merges become real when the test's catalog says so."""

    def __init__(self, data_dir: DataDir, **changed: Any) -> None:
        self.data_dir = data_dir
        self.now_s = 0.0
        self.csn = data_dir.meta("snapshot_csn")
        self.serving = True
        self.members = [ReplicaId("r1")]
        self.refusals: list[Exception] = []
        self.merged: list[tuple[str, int]] = []
        self.damaged: list[str] = []
        self.long_snapshots: set[Csn] = set()
        self.locked: set[PartId] | None = set()
        self.metrics = Metrics()
        made = settings(**(SETTINGS | changed))
        self.reader = CatalogReader(data_dir.path)
        self.counts = PartCounts(self.reader)
        self.waiters = CsnWaiters(Csn(self.csn))
        self.survey = Survey(
            settings=made,
            reader=self.reader,
            tables=cast("Any", self),
            counts=self.counts,
            waiters=self.waiters,
            long_snapshots=lambda: self.long_snapshots,
            locked=self.locked_parts,
            clock=lambda: self.now_s,
            now_ms=lambda: TIME_MS + self.csn,
        )
        self.switches = Switches.of(made)
        self.compactor = Compactor(
            replica=ReplicaId("r1"),
            settings=made,
            switches=self.switches,
            survey=self.survey,
            runner=cast("Any", self),
            counts=self.counts,
            metrics=self.metrics,
            members=lambda: self.members,
            serving=lambda: self.serving,
            damaged=lambda part, _: self.damaged.append(part),
            clock=lambda: self.now_s,
        )
        self.optimizer = self.compactor.optimizer

    def schema(self, table: TableId, at: Csn) -> tuple[int, TableSchema]:
        """Return the version and schema of a table (`Tables`)."""
        row = self.reader.table(table, at)
        assert row is not None, "it exists from the begin on"
        return row.version, TableSchema.from_definition(table, row.definition)

    async def locked_parts(self, _table: TableId) -> set[PartId]:
        """Return the parts that others have locked; raises without a connection to ZooKeeper."""
        if self.locked is None:
            raise UnavailableError("no connection")
        return self.locked

    async def run(self, table: TableId, group: Group) -> Csn:
        """Merge as the runner does, or refuse if the test says so."""
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop(0)
        self.merged.append((group.path, len(group.parts)))
        self.insert(group.rows, group.path.removeprefix("y="), gone=group.parts)
        return Csn(self.csn)

    def insert(self, rows: int, year: str = "1", gone: tuple[PartId, ...] = ()) -> None:
        """Commit a part, in place of others; the agent applies it."""
        self.csn += 1
        for part in gone:
            self.data_dir.remove(self.csn, part, change=False)
        data = pa.table({"k": list(range(rows)), "y": [int(year)] * rows}, schema=SCHEMA)
        new = self.data_dir.insert(self.csn, {TABLE: data})
        entries: list[Entry] = [RemovePart(TABLE, part) for part in gone]
        self.counts.applied([applied(self.csn, entries + [added(part) for part in new])])
        self.waiters.advance(Csn(self.csn))

    def result(self, name: str) -> float:
        """Return how many merges had this result."""
        found = self.metrics.registry.get_sample_value("tidelock_compactions_total", {"result": name})
        return found or 0.0


@pytest.fixture
def data_dir(tmp_path: Path) -> DataDir:
    """A catalog with a table of partitions by year."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "t", SCHEMA, partition_by=["y"])
    return made


@pytest.fixture
def world(data_dir: DataDir) -> Iterator[World]:
    """An agent with two parts in one partition and one in another."""
    made = World(data_dir)
    for year in ("1", "1", "2"):
        made.insert(5, year)
    yield made
    made.reader.close()


async def test_a_look_merges_what_is_worth_it(world: World) -> None:
    """Both parts of the one partition become one; the other part is left, and no work remains."""
    await world.compactor.merge_due()
    assert world.merged == [("y=1", 2)]
    await world.compactor.merge_due()
    assert world.merged == [("y=1", 2)]
    assert (world.counts.of(TABLE, "y=1"), world.result("done")) == (1, 1)


async def test_a_crowded_partition_is_looked_at_at_once(data_dir: DataDir) -> None:
    """A check runs each interval, and as soon as a partition has as many parts as one merge accepts."""
    world = World(data_dir, compaction_parts_max=3, compaction_interval_s=10.0)
    world.insert(5)
    world.insert(5)
    await world.compactor.tick()
    assert world.merged == []
    world.insert(5)
    await world.compactor.tick()
    assert world.merged == [("y=1", 3)]
    world.insert(15)
    await world.compactor.tick()
    assert len(world.merged) == 1
    world.now_s = 10.0
    await world.compactor.tick()
    assert world.merged == [("y=1", 3), ("y=1", 2)]


async def test_partitions_that_rest_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check reads a partition again when its parts have changed, or when it may have become quiet."""
    await world.compactor.merge_due()
    asked: list[str] = []
    compactable = world.reader.compactable

    def noted(table: TableId, path: str, at: Csn) -> Any:
        asked.append(path)
        return compactable(table, path, at)

    monkeypatch.setattr(world.reader, "compactable", noted)
    await world.compactor.merge_due()
    assert asked == []
    world.insert(1, "2")
    await world.compactor.merge_due()
    assert set(asked) == {"y=2"}


async def test_one_agent_plans_for_a_table(world: World) -> None:
    """The other replicas do not merge a table until its planner has disappeared."""
    world.members = [ReplicaId(f"r{number}") for number in range(1, 30)]
    await world.compactor.merge_due()
    assert world.merged == []
    world.members = [ReplicaId("r1")]
    await world.compactor.merge_due()
    assert world.merged == [("y=1", 2)]


@pytest.mark.parametrize("off", ["setting", "state"])
async def test_an_agent_that_may_not_merges_nothing(data_dir: DataDir, off: str) -> None:
    """Nothing is merged with the setting off, or while the agent does not serve."""
    world = World(data_dir, **({"compaction": False} if off == "setting" else {}))
    world.serving = off != "state"
    world.insert(5)
    world.insert(5)
    await world.compactor.merge_due()
    assert world.merged == []


async def test_a_table_turns_it_off(tmp_path: Path) -> None:
    """The property stops the background task; an operator's request is run nevertheless."""
    made = DataDir(tmp_path / "data")
    made.create_table(2, "t", SCHEMA, partition_by=["y"])
    with made.sql() as db:
        db.execute("""UPDATE tables SET definition = replace(definition, '{}', '{"compaction": "off"}')""")
    world = World(made)
    world.insert(5)
    world.insert(5)
    await world.compactor.merge_due()
    assert world.merged == []
    assert (await world.optimizer.run(TABLE, None, 10.0)).groups == 1


async def test_what_gave_way_rests_longer_each_time(world: World) -> None:
    """A conflict is no failure: the merge is tried again, after growing pauses."""
    pauses = []
    for _ in range(12):
        world.refusals = [SerializationConflictError("held by another", part="r1-1-1")]
        await world.compactor.merge_due()
        before = world.now_s
        while not world.refusals and world.now_s < before + 100:
            world.now_s += 0.01
            if not world.survey._resting(TABLE, "y=1", Csn(world.csn)):
                break
        pauses.append(world.now_s - before)
    assert world.merged == []
    assert world.result("gave_way") == 12
    assert pauses[0] < 0.2
    assert 20 <= pauses[-1] <= 41
    await world.compactor.merge_due()
    assert world.merged == [("y=1", 2)]


async def test_parts_that_are_locked_are_left_out(world: World) -> None:
    """The others are merged without them; when they are free, they are merged as well."""
    for _ in range(3):
        world.insert(5)
    held = world.data_dir.parts(TABLE)[0].part
    world.locked = {held}
    await world.compactor.merge_due()
    assert world.merged == [("y=1", 4)]
    world.insert(20)
    await world.compactor.merge_due()
    assert world.merged[1:] == [("y=1", 2)]
    assert world.reader.part(held) is not None
    assert world.result("gave_way") == 0
    world.locked = None  # without an answer about locks the merge is tried
    world.insert(5)
    world.insert(10)
    await world.compactor.merge_due()
    assert world.merged[2:] == [("y=1", 3)]


async def test_optimize_waits_for_locked_parts(world: World) -> None:
    """As long as it may: what is locked may become free."""
    world.locked = {part.part for part in world.data_dir.parts(TABLE)}
    began = asyncio.create_task(world.optimizer.run(TABLE, "y=1", 10.0))
    await asyncio.sleep(0.02)
    assert (world.merged, began.done()) == ([], False)
    world.locked = set()
    assert (await began).done
    assert world.merged == [("y=1", 2)]


async def test_what_a_long_transaction_sees_is_merged_apart(world: World) -> None:
    """Also what was merged of it since, however new that is; when it has ended, all is one again."""
    seen = Csn(world.csn)
    for _ in range(2):
        world.insert(5)
    world.long_snapshots = {seen}
    await world.compactor.merge_due()
    assert world.merged == [("y=1", 2), ("y=1", 2)]
    await world.compactor.merge_due()
    assert len(world.merged) == 2
    world.insert(10)
    await world.compactor.merge_due()
    assert len(world.merged) == 3
    assert world.counts.of(TABLE, "y=1") == 2
    world.long_snapshots = set()
    await world.compactor.merge_due()
    assert world.counts.of(TABLE, "y=1") == 2  # 10 and 20 rows: not worth it yet
    world.insert(10)
    await world.compactor.merge_due()
    assert world.counts.of(TABLE, "y=1") == 1


async def test_a_damaged_part_is_reported(world: World) -> None:
    """A part that cannot be read here is fetched again, and the merge fails for now."""
    world.refusals = [CorruptError("wrong bytes", part="r1-1-1")]
    await world.compactor.merge_due()
    assert (world.damaged, world.merged, world.result("failed")) == (["r1-1-1"], [], 1)


async def test_optimize_merges_to_the_end(world: World) -> None:
    """Whatever the sizes: one part in each partition, and the numbers of what was done."""
    world.insert(500, "1")
    world.insert(5, "2")
    found = await world.optimizer.run(TABLE, None, 10.0)
    assert (found.groups, found.parts_before, found.parts_after, found.done) == (2, 5, 2, True)
    assert found.bytes > 0
    again = await world.optimizer.run(TABLE, None, 10.0)
    assert (again.groups, again.parts_before, again.parts_after, again.done) == (0, 2, 2, True)


async def test_optimize_of_one_partition_leaves_the_others(world: World) -> None:
    """Only the named partition is merged."""
    world.insert(5, "2")
    found = await world.optimizer.run(TABLE, "y=2", 10.0)
    assert (found.groups, found.parts_before, found.parts_after) == (1, 2, 1)
    assert world.counts.of(TABLE, "y=1") == 2


async def test_optimize_tries_again_after_a_conflict(world: World) -> None:
    """The conflict and the failure delay the request; it merges what can be merged afterwards."""
    world.refusals = [SerializationConflictError("held", part="r1-1-1"), UnavailableError("no process")]
    found = await world.optimizer.run(TABLE, None, 10.0)
    assert (found.groups, found.done) == (1, True)


async def test_optimize_that_cannot_succeed_says_so(world: World) -> None:
    """A damaged part ends the request with its error."""
    world.refusals = [CorruptError("wrong bytes", part="r1-1-1")]
    with pytest.raises(CorruptError):
        await world.optimizer.run(TABLE, None, 10.0)
    world.serving = False
    with pytest.raises(UnavailableError, match="is stopping"):
        await world.optimizer.run(TABLE, None, 10.0)


async def test_optimize_answers_when_its_time_is_over(world: World) -> None:
    """A running merge is finished after the answer; the next request joins it and sees the end."""
    begin = asyncio.Event()
    run = world.run

    async def slow(table: TableId, group: Group) -> Csn:
        await begin.wait()
        return await run(table, group)

    world.compactor.runner = cast("Any", type("Slow", (), {"run": staticmethod(slow)}))
    found = await world.optimizer.run(TABLE, None, 0.01)
    assert (found.groups, found.parts_after, found.done) == (0, 3, False)
    joining = asyncio.create_task(world.optimizer.run(TABLE, None, 10.0))
    await asyncio.sleep(0)
    begin.set()
    joined = await joining
    assert (joined.groups, joined.parts_after, joined.done) == (0, 2, True)
    assert world.merged == [("y=1", 2)]


def test_target_size_fits_the_limits() -> None:
    """A part that an insert closes by its size, or that hardly fits a merge, is of target size."""
    assert limits_of(settings()).target_bytes == 128 << 20
    assert limits_of(settings(part_bytes_max=1000)).target_bytes == 1000
    assert limits_of(settings(compaction_bytes_max=3000)).target_bytes == 1000
