"""Clients that define tables, bring dropped ones back, insert and read, and the judgement of what they saw.

Each table has a number of its own, in its comment, and each row the number of the table that its writer saw.
The judge is that of the chaos runner (`chaos/workloads/table_lives.py`).
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.workloads.table_lives import Tables, judged
from tests.sim.clients import SimSession, begin, bytes_of, insert, rollback
from tests.sim.log_lives import LogLife
from tests.sim.network import Serve
from tidelock.csnlog.core.ids import Csn, TableId, Tid
from tidelock.errors import (
    RefusedError,
    SnapshotTooOldError,
    TableExistsError,
    TidelockError,
    UnknownTableError,
)
from tidelock.replica_agent.services.definitions import Defined, DefinitionService, Statement
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.tables.names import full_name, no_table
from tidelock.wire.tables import CreateTableRequest
from workloads.history import CallEnd

if TYPE_CHECKING:
    from tests.sim.world import SimWorld
    from tidelock.replica_agent.services.bundle import Services

#: A definition, as its service takes it.
Define = Callable[[DefinitionService], Statement]

#: Names that tables get; few, so that clients meet.
NAMES: Final = ("t1", "t2", "t3")
SCHEMA: Final = pa.schema([("g", pa.int64()), ("n", pa.int64())])
#: The kinds of change that create a table.
_CREATES: Final = frozenset({"create", "replace"})
#: Definitions of one transaction, at most.
_STATEMENTS_MAX: Final = 4
#: The share of the calls of a transaction before which a client waits.
_SLOWLY: Final = 0.3
#: Creations at whose CSNs all replicas are read in the end.
_SAMPLED: Final = 3


class DefinerStory:
    """The record of what all definers did and saw.

    Attributes:
        lines: Reads and inserts, as `judged` takes them; of reads also the log that the replica followed.
        made: The CSN of each creation that was acknowledged, by the number of the table, with its name.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.made: dict[int, tuple[Csn, str]] = {}
        self._numbers = 0

    def number(self) -> int:
        """Return a number that no table and no row has yet."""
        self._numbers += 1
        return self._numbers

    def line(self, f: str, time: float, **fields: Any) -> None:
        """Write down an operation that went well, or whose `type` is another one."""
        self.lines.append({"f": f, "type": "ok", "index": len(self.lines), "time": time, **fields})


class SimDefiner(SimSession):
    """Changes tables, inserts into those that are there, and reads them all, in turns that are drawn."""

    def __init__(self, world: SimWorld, name: str) -> None:
        super().__init__(world, name, 1)
        self._story = world.oracle.definers

    async def run(self) -> None:
        """Do as many things as a writer does transactions, and twice as many."""
        for _ in range(3 * self.world.plan.transactions):
            await asyncio.sleep(self.chance.expovariate(3 * self.world.plan.transactions / 36.0))
            does = self.chance.choice((self._change, self._several, self._insert, self._insert, self._read))
            at_once = self.chance.choice((1, 1, 3)) if does == self._change else 1
            await asyncio.gather(*(self._try(does) for _ in range(at_once)))

    async def _try(self, does: Callable[[], Awaitable[None]]) -> None:
        try:
            await does()
        except TidelockError as error:
            self.world.trace.comment(f"{self.name} is refused or not answered: {error!r}")

    async def _think(self) -> None:
        """Let others be faster, now and then."""
        if self.chance.random() < _SLOWLY:
            await asyncio.sleep(self.chance.expovariate(1.0))

    async def _change(self) -> None:
        name, other = self.chance.sample(NAMES, 2)
        what = self.chance.choice(("create", "create", "replace", "rename", "drop", "undrop"))
        number = self._story.number()
        define = _definition(what, name, other, number)
        try:
            made: Defined = await self.ask(what, lambda at: at.definitions.alone(define(at.definitions)))
        except RefusedError:
            raise
        except TidelockError:
            self._story.line("define", self.world.loop.time(), type="info", value=[[what, name, other]])
            raise
        self._story.line("define", self.world.loop.time(), value=[[what, name, other]])
        if what in _CREATES:
            self._story.made[number] = made.done.csn, name
        self.world.oracle.did["definitions"] += 1
        self.csn = max(self.csn, made.done.csn)

    async def _insert(self) -> None:
        home, name = self.chance.choice(self.world.hosts).name, self.chance.choice(NAMES)
        csn, n = self.csn, self._story.number()
        tid: Tid = await self.ask("begin", lambda at: begin(at, None, csn, fresh=False), at=home)
        self.world.oracle.began(tid)
        await self._think()
        try:
            table: int = await self.ask("insert", functools.partial(_insert, tid, name, n), at=home)
        except UnknownTableError:
            await self.ask("rollback", lambda at: rollback(at, tid), at=home)
            return
        await self._think()
        ended = await self.decided(tid, home)
        if ended.end is CallEnd.OK and ended.csn is not None:
            self._story.line("add", self.world.loop.time(), csn=ended.csn, value=[["add", table, n]])
            self.csn = max(self.csn, ended.csn)

    async def _several(self) -> None:
        """Define several tables in one transaction, and insert into those that it creates."""
        home, csn = self.chance.choice(self.world.hosts).name, self.csn
        tid: Tid = await self.ask("begin", lambda at: begin(at, None, csn, fresh=False), at=home)
        self.world.oracle.began(tid)
        own: dict[str, tuple[int, int]] = {}  # by name: the number of a table that it creates, and its row
        for _ in range(self.chance.randint(1, _STATEMENTS_MAX)):
            await self._think()
            name, other = self.chance.sample(NAMES, 2)
            what = self.chance.choice(("create", "replace", "rename", "drop"))
            number, n = self._story.number(), self._story.number()
            define = _definition(what, name, other, number)
            try:
                await self.ask(what, _inside(tid, define), at=home)
            except (TableExistsError, UnknownTableError):
                continue  # a definition that is refused changes nothing
            before = own.pop(name, None)
            if what in _CREATES:
                await self.ask("insert", functools.partial(_fill, tid, name, number, n), at=home)
                own[name] = number, n
            elif what == "rename" and before is not None:
                own[other] = before
        ended = await self.decided(tid, home)
        if ended.end is CallEnd.OK and ended.csn is not None:
            self.world.oracle.did["definitions together"] += 1
            self.csn = max(self.csn, ended.csn)
            for name, (number, n) in own.items():
                self._story.made[number] = ended.csn, name
                self._story.line("add", self.world.loop.time(), csn=ended.csn, value=[["add", number, n]])

    async def _read(self) -> None:
        csn = self.csn
        pin = await self.ask(
            "snapshot",
            lambda at: at.reads.open_snapshot(csn=None, at_ms=None, min_csn=csn or None, ttl_s=3.0),
        )
        self.csn = max(self.csn, pin.csn)
        await self.look(pin.csn, self.chance.choice(self.world.hosts).name)

    async def look(self, csn: Csn, replica: str) -> Tables:
        """Read all tables at a CSN at a replica, write that down, and return them."""
        found: Tables = await self.ask("read", lambda at: _shown(at, csn), at=replica, timeout_s=30.0)
        log = self.world.oracle.follows(replica, csn)
        self._story.line(
            "read", self.world.loop.time(), snapshot=csn, replica=replica, log=log,
            value=[["r", "tables", found]],
        )  # fmt: skip
        return found


# -- what is asked: each runs at the agent -------------------------------------------------------------------


def _definition(what: str, name: str, other: str, number: int) -> Define:
    """Return a definition: of the table with that number, or of the one that has a name."""
    if what == "rename":
        return lambda at: at.altering(name, to=other, properties={})
    if what == "drop":
        return lambda at: at.dropping(name)
    if what == "undrop":
        return lambda at: at.undropping(name, to=None, csn=None)
    properties = {"comment": str(number)}
    asked = CreateTableRequest(name, "", [], [], properties, or_replace=what == "replace")
    return lambda at: at.creating(asked, SCHEMA)


def _inside(tid: Tid, define: Define) -> Serve:
    return lambda at: at.definitions.inside(str(tid), define(at.definitions))


async def _insert(tid: Tid, name: str, n: int, services: Services) -> int:
    reader = services.reads.reader
    tables = {bearer: table for table, bearer in reader.table_names(tid.snapshot).items()}
    if full_name(name) not in tables:
        raise no_table(full_name(name), tid.snapshot, tables)
    number = _number(reader, tables[full_name(name)], tid.snapshot)
    await _fill(tid, name, number, n, services)
    return number


async def _fill(tid: Tid, name: str, number: int, n: int, services: Services) -> None:
    await insert(services, tid, name, pa.table({"g": [number], "n": [n]}, schema=SCHEMA))


async def _shown(services: Services, csn: Csn) -> Tables:
    await services.reads.require_read(csn)
    reader, names = services.reads.reader, {str(full_name(name)): name for name in NAMES}
    there: Tables = []
    for table, name in sorted(reader.table_names(csn).items()):
        if name not in names:
            continue
        rows: list[list[int]] = []
        for part in reader.parts(table, csn):
            found = pq.ParquetFile(pa.BufferReader(bytes_of(services, part))).read(use_threads=False)
            rows += map(list, zip(found["g"].to_pylist(), found["n"].to_pylist(), strict=True))
        there.append((names[name], _number(reader, table, csn), sorted(rows), []))
    return sorted(there)


def _number(reader: CatalogReader, table: TableId, csn: Csn) -> int:
    found = reader.table(table, csn)
    assert found is not None, f"{table} has a name at CSN {csn}"
    return int(found.definition["properties"]["comment"])


# -- the judgement -------------------------------------------------------------------------------------------


async def judge_definers(world: SimWorld, end: Csn, horizon: Csn) -> None:
    """Read all tables at the end, and where some were created, at every replica; then judge all reads.

    Each log is judged for itself. If ZooKeeper was set back, acknowledged changes and rows may be lost.
    """
    if not world.plan.definers:
        return
    story, one_log = world.oracle.definers, world.oracle.logs.now is LogLife.FIRST
    made = {csn: (number, name) for number, (csn, name) in story.made.items() if one_log and csn >= horizon}
    chosen = world.chance("creations").sample(sorted(made), min(_SAMPLED, len(made)))
    for host in world.hosts:
        session = SimDefiner(world, f"c-defined-{host.name}")
        for csn in sorted({*chosen, end}):
            try:
                found = await session.look(csn, host.name)
            except SnapshotTooOldError as error:
                if csn >= end:
                    world.oracle.violated(
                        "I9 HONEST", f"{host.name} does not give CSN {csn}: {error.message}"
                    )
                continue
            if csn in made and made[csn] not in [(number, name) for name, number, *_ in found]:
                number, name = made[csn]
                what = f"table {number} was created as {name} at CSN {csn}, and {host.name} shows {found}"
                world.oracle.violated("I4 DURABLE", what)
    beside = [line for line in story.lines if line["f"] == "define" or (line["f"] == "add" and one_log)]
    reads: dict[LogLife, list[dict[str, Any]]] = defaultdict(list)
    for line in story.lines:
        if line["f"] == "read":
            reads[line["log"]].append(line)
    for lines in reads.values():
        for violation in judged([*beside, *lines]):
            world.oracle.violated("I3 to I10, tables", f"{violation.claim}: {violation.story}")
