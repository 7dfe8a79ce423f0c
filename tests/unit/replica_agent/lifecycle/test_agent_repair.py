"""The handling of a part that is damaged, mended, and found damaged again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import AddPart
from tidelock.replica_agent.cloning.missing_parts import MissingParts
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.lifecycle.agent import Agent
from tidelock.replica_agent.replicas.catalog_port import ReplicaCatalogPort
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replication.core.model import Location, PartMeta, Wanted
from tidelock.replication.partfs import PartFs

PART = PartId("r2-1-1")
WHOLE = PartId("r2-1-2")
TID = Tid(Csn(1), ReplicaId("r2"), 1, 1)
META = PartMeta(PART, TableId("default.t"), "", 1, 10, "0" * 32)


@dataclass
class Told:
    """The notifications that the parts of the agent received."""

    held: list[PartId] = field(default_factory=list)
    lost: list[PartId] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    released: list[PartId] = field(default_factory=list)

    def want(self, wanted: Wanted, *, clone: bool) -> None:
        """Note a part that is wanted now: a reader waits for it, so it is none of a clone."""
        assert not clone
        self.wanted.append(wanted)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """A catalog with one part, staged and not committed."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    await made.write(lambda db: jobs.add_staged(db, [stored()], []))
    yield made
    await made.close()


@pytest.fixture
def told() -> Told:
    """No notifications yet."""
    return Told()


@pytest.fixture
async def agent(catalog: Catalog, told: Told) -> Agent:
    """An agent that is not started, around a real catalog."""
    made: Any = Agent(settings())
    made._local = SimpleNamespace(catalog=catalog, readers=SimpleNamespace(released=told.released.append))
    fetcher: Any = SimpleNamespace(want=told.want)
    made._parts = SimpleNamespace(
        replication=SimpleNamespace(
            applier=SimpleNamespace(part_held=told.held.append, part_lost=told.lost.append),
            missing=MissingParts(catalog=catalog, fetcher=fetcher, ahead=1),
        ),
        uploads=SimpleNamespace(eager=SimpleNamespace(arrived=lambda _part: None)),
    )
    assert isinstance(made, Agent)
    return made


def stored() -> jobs.StagedPart:
    """The part, in a pack."""
    return jobs.StagedPart(META, Location("packs/00/r1-1-9.pack", 0, 10, b"\0" * 8), TID)


async def commit(catalog: Catalog) -> None:
    """Make the part visible from CSN 2 on."""
    added = AddPart(META.table, PART, META.path, META.rows, META.length, META.checksum)
    record = jobs.AppliedRecord(Csn(2), 1, [jobs.AppliedTid(str(TID), [added], None, True)], {})
    await catalog.write(lambda db: jobs.apply(db, [record]))


async def test_a_mended_part_is_released(agent: Agent, catalog: Catalog, told: Told) -> None:
    """Once its bytes are present again, records and readers that wait for it are notified."""
    await commit(catalog)
    agent._damaged.add(PART)
    agent.part_held(PART)
    assert (told.held, told.released, told.wanted) == ([PART], [PART], [])
    agent.part_held(PART)
    assert (told.held, told.released) == ([PART, PART], [PART])


async def test_a_part_found_damaged_again_is_fetched_again(
    agent: Agent, catalog: Catalog, told: Told
) -> None:
    """The end of a fetch is not reported if a late report has found its part damaged again meanwhile."""
    await commit(catalog)
    agent._damaged.add(PART)
    await catalog.write(lambda db: jobs.quarantine(db, PART))
    agent.part_held(PART)
    assert (told.held, told.lost, told.released) == ([], [PART], [])
    assert [(wanted.meta.part, wanted.csn) for wanted in told.wanted] == [(PART, 2)]
    await catalog.write(lambda db: jobs.add_staged(db, [stored()], []))
    agent.part_held(PART)
    assert (told.held, told.released) == ([PART], [PART])


async def test_an_undecided_part_is_left_to_its_record(agent: Agent, catalog: Catalog, told: Told) -> None:
    """A part that may be rolled back is wanted by records only: nothing else would end its fetch."""
    agent._damaged.add(PART)
    await catalog.write(lambda db: jobs.quarantine(db, PART))
    agent.part_held(PART)
    assert (told.held, told.lost, told.wanted) == ([], [PART], [])


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_report_alone_condemns_no_part(
    agent: Agent, catalog: Catalog, told: Told, tmp_path: Path, damaged: bool
) -> None:
    """A reported part is read: if its bytes are right it is still served, else it is fetched again."""
    files = PartFs(tmp_path)
    files.open()
    sink = files.begin(WHOLE)
    sink.write(b"ten bytes!")
    meta = PartMeta(WHOLE, TableId("default.t"), "", 1, 10, sink.checksum)
    at = sink.finish()
    await catalog.write(lambda db: jobs.add_staged(db, [jobs.StagedPart(meta, at, TID)], []))
    added = AddPart(meta.table, WHOLE, meta.path, meta.rows, meta.length, meta.checksum)
    record = jobs.AppliedRecord(Csn(2), 1, [jobs.AppliedTid(str(TID), [added], None, True)], {})
    await catalog.write(lambda db: jobs.apply(db, [record]))
    if damaged:
        (tmp_path / at.file).write_bytes(b"ten bytes?")
    replication: Any = agent.parts.replication
    replication.catalog_port = ReplicaCatalogPort(catalog, files, cast("Any", None), Metrics())
    await agent._repair(agent.parts, WHOLE, "a query failed")
    files.close()
    row = catalog.reader.part(WHOLE)
    assert row is not None
    if damaged:
        assert (row.state, told.lost, told.released) == ("quarantined", [WHOLE], [])
        assert [wanted.meta.part for wanted in told.wanted] == [WHOLE]
    else:
        assert (row.state, told.lost, told.released, told.wanted) == ("held", [], [WHOLE], [])
