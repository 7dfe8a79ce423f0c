"""The rescue of landed rows: who brings them, when, and when their parts may be forgotten."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import AddPart, SkippedRecord
from tidelock.csnlog.core.results import Committed
from tidelock.errors import CorruptError, LabelExistsError, UnavailableError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.states import AgentState, Condition
from tidelock.replica_agent.landing.rescue import Rescue
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.pack_writer import PartNumbers
from tidelock.replica_agent.transactions.ending.commit import WaitFor
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replication.core.model import Location, PartMeta

LANDED = Tid(Csn(1), ReplicaId("r2"), 7, 3)
OTHER = Tid(Csn(1), ReplicaId("r2"), 7, 4)
TABLE, GONE = TableId("default.t"), TableId("default.gone")
#: A CSN at which the tables had the columns of the rows.
COLUMNS = Csn(3)
DONE = Committed(Csn(9), 1)


def staged(
    number: int, tid: Tid, kind: Any = "landed", table: TableId = TABLE, columns_csn: Csn | None = COLUMNS
) -> jobs.StagedPart:
    """Return a part in a pack."""
    meta = PartMeta(
        PartId(f"r2-7-{number}"), table, "p=1", 5, 10, f"{number:032x}", kind=kind, columns_csn=columns_csn
    )
    return jobs.StagedPart(meta, Location("packs/00/r1-1-9.pack", number * 10, 10, b"\0" * 8), tid)


class World:
    """The parts beside the rescue, over a real catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.settings = settings()
        self.transactions = Transactions(ReplicaId("r1"), 1, self.settings, time.monotonic)
        self.condition = Condition("r1", AgentState.SERVING)
        self.end: Exception | Committed = DONE
        self.log_end, self.reached = Csn(5), Csn(5)
        self.damaged = False
        self.reported: list[PartId] = []
        self.committed: list[tuple[str | None, list[PartMeta]]] = []
        self.skips: dict[Csn, SkippedRecord] = {}
        self.versions: dict[tuple[TableId, Csn], int] = {(TABLE, COLUMNS): 3}
        world = cast("Any", self)
        self.rescue = Rescue(
            condition=self.condition, log=world, waiters=world, catalog=catalog, tables=world, files=world,
            numbers=PartNumbers(ReplicaId("r1"), 1), transactions=self.transactions, commits=world,
            skips=self.skips, metrics=Metrics(), damaged=lambda part, _: self.reported.append(part),
            wait_s=0.1,
        )  # fmt: skip

    def version_since(self, table: TableId, since: Csn, at: Csn) -> int | None:
        """Return the version of a table that was not dropped (`Tables`)."""
        assert at == self.reached
        return self.versions.get((table, since))

    async def barrier(self) -> Csn:
        """Return the end of the log (`CsnLog`)."""
        return self.log_end

    async def wait(self, csn: Csn, timeout_s: float) -> bool:
        """Wait until a CSN is applied (`CsnWaiters`)."""
        assert timeout_s == 0.1
        return csn <= self.reached

    def read(self, location: Location) -> bytes:
        """Return the bytes of a part (`PartFs`)."""
        if self.damaged:
            raise CorruptError("wrong bytes")
        return bytes([location.offset]) * location.length

    async def commit(self, tid: Tid, *, wait: WaitFor, timeout_s: float | None) -> Committed:
        """Commit (`Commits`)."""
        assert (wait, timeout_s) == (WaitFor.HOME, None)
        tx: Transaction = self.transactions.find(str(tid))
        self.committed.append((tx.label, [one.meta for one in tx.staged.memory.values()]))
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A catalog with a landing of two parts that is confirmed here."""
    catalog = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    parts = [staged(1, LANDED), staged(2, LANDED)]
    await catalog.write(lambda db: jobs.add_staged(db, parts, [LANDED]))
    yield World(catalog)
    await catalog.close()


async def test_the_bytes_are_committed_under_the_label(world: World) -> None:
    """As parts of their own, with everything else that is known of them."""
    assert await world.rescue.settle(LANDED)
    [(label, parts)] = world.committed
    assert label == f"landing/{LANDED}"
    assert [(one.table, one.path, one.rows, one.length, one.checksum) for one in parts] == [
        (TABLE, "p=1", 5, 10, f"{number:032x}") for number in (1, 2)
    ]
    assert {one.kind for one in parts} == {"part"}
    assert not {one.part for one in parts} & {"r2-7-1", "r2-7-2"}


async def test_rows_of_a_dropped_table_stay_away(world: World) -> None:
    """Those of the other tables are committed; when all are gone nothing is, and the parts may go."""
    await world.catalog.write(lambda db: jobs.add_staged(db, [staged(5, LANDED, table=GONE)], []))
    assert await world.rescue.settle(LANDED)
    [(_, parts)] = world.committed
    assert [(one.table, one.columns_csn) for one in parts] == [(TABLE, COLUMNS)] * 2
    world.versions = {}
    assert await world.rescue.settle(LANDED)
    assert len(world.committed) == 1


async def test_rows_that_an_earlier_version_has_left(world: World) -> None:
    """They had the columns of the time at which they landed, which the table may not have any more."""
    await world.catalog.write(lambda db: jobs.add_staged(db, [staged(6, OTHER, columns_csn=None)], [OTHER]))
    world.versions[TABLE, OTHER.snapshot] = 2
    assert await world.rescue.settle(OTHER)
    [(_, [part])] = world.committed
    assert part.columns_csn == OTHER.snapshot


async def test_a_transaction_without_landed_rows(world: World) -> None:
    """Its parts may go at once."""
    await world.catalog.write(lambda db: jobs.add_staged(db, [staged(3, OTHER, "part")], [OTHER]))
    assert await world.rescue.settle(OTHER)
    assert world.committed == []


async def test_parts_that_were_not_confirmed(world: World) -> None:
    """Without the mark of a prepared transaction others have the copies that count."""
    await world.catalog.write(lambda db: jobs.add_staged(db, [staged(4, OTHER)], []))
    assert await world.rescue.settle(OTHER)
    assert world.committed == []


async def test_somebody_else_has_brought_them(world: World) -> None:
    """The label exists: the parts may go."""
    world.end = LabelExistsError("committed before")
    assert await world.rescue.settle(LANDED)


@pytest.mark.parametrize(
    "broken",
    [
        {"end": UnavailableError("not now")},
        {"log_end": Csn(6)},
        {"damaged": True},
        {"end": RuntimeError("unforeseen")},
        {"condition": AgentState.STARTING},
    ],
    ids=["no commit", "behind the log", "wrong bytes", "unforeseen", "starting"],
)
async def test_it_is_tried_again_later(world: World, broken: dict[str, Any]) -> None:
    """The parts stay, and the next check brings the rows."""
    before = {name: getattr(world, name) for name in broken}
    for name, value in broken.items():
        if name == "condition":
            world.condition.state = value
        else:
            setattr(world, name, value)
    assert not await world.rescue.settle(LANDED)
    for name, value in before.items():
        setattr(world, name, value)
    world.condition.state = AgentState.SERVING
    assert await world.rescue.settle(LANDED)
    assert len(world.committed[-1][1]) == 2
    assert world.reported == (["r2-7-1"] if "damaged" in broken else [])


async def test_a_replica_that_drains_brings_them(world: World) -> None:
    """It may have the last copy, and is about to be removed."""
    world.condition.state = AgentState.DRAINING
    assert await world.rescue.settle(LANDED)
    assert len(world.committed) == 1


async def test_a_part_that_is_being_repaired(world: World) -> None:
    """All or nothing: a label for half of the rows would keep the other half out."""
    await world.catalog.write(lambda db: jobs.quarantine(db, "r2-7-2"))
    assert not await world.rescue.settle(LANDED)
    assert world.committed == []


async def test_an_operator_has_skipped_the_record(world: World) -> None:
    """Its rows are not wanted."""
    world.skips[Csn(4)] = SkippedRecord(Csn(4), 1, "", "me", "bad rows", 0, (str(LANDED),))
    assert await world.rescue.settle(LANDED)
    assert world.committed == []


async def test_the_record_of_the_label_settles_the_parts(world: World) -> None:
    """A replica that applies it forgets what has landed, and brings nothing."""
    applied = jobs.AppliedTid("5-r3-1-1", (), f"landing/{LANDED}", True)
    record = jobs.AppliedRecord(Csn(6), 6000, [applied], {})
    unused = await world.catalog.write(lambda db: jobs.apply(db, [record]))
    assert unused == ["packs/00/r1-1-9.pack"]
    assert world.catalog.reader.prepared() == []
    assert await world.rescue.settle(LANDED)
    assert world.committed == []


async def test_its_own_record_makes_them_parts_like_others(world: World) -> None:
    """The home has committed it: the parts stay, and are of the common kind."""
    entries = tuple(
        AddPart(TABLE, PartId(f"r2-7-{number}"), "p=1", 5, 10, f"{number:032x}") for number in (1, 2)
    )
    record = jobs.AppliedRecord(Csn(6), 6000, [jobs.AppliedTid(str(LANDED), entries, None, True)], {})
    assert await world.catalog.write(lambda db: jobs.apply(db, [record])) == []
    assert await world.rescue.settle(LANDED)
    assert world.committed == []
    found = world.catalog.reader.parts(TABLE, Csn(6))
    assert [(part.kind, part.creation_csn) for part in found] == [("part", 6), ("part", 6)]
