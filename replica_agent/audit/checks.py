"""The checks of one replica: each reads what it compares, in the order that matters, and compares it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tidelock.csnlog.cluster.replica_progress import locks_needed_from
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.results import Committed, Outcome
from tidelock.csnlog.core.store import Store
from tidelock.errors import UnavailableError, UnknownTransactionError
from tidelock.replica_agent.audit import judgements
from tidelock.replica_agent.audit.judgements import CheckResult, Definition, Labelled, PartRemoval
from tidelock.replica_agent.audit.records import LogFacts
from tidelock.replica_agent.audit.rules import Rule, RuleSet
from tidelock.replica_agent.audit.scratch import AuditDatabase
from tidelock.replica_agent.audit.znodes import Znodes
from tidelock.replication.core.digest import BLOCK_BYTES, BLOCK_DIGEST_BYTES
from tidelock.replication.core.lock_rules import LockInfo
from tidelock.wire.audit import AuditFinding, Severity

#: Folders whose files are named by rows. Files in ``tmp`` are under way, and are deleted at each start.
_TOPS: Final = ("parts", "packs")
#: How often a check reads on when the log was cut behind it, before it gives up.
_LOG_TRIES: Final = 100


class AuditCheck(Protocol):
    """One check; a run may be repeated."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    async def run(self) -> CheckResult:
        """Read and compare once.

        Raises:
            CorruptError: The compared data cannot be read; that is a finding too.
            UnavailableError: The check is not possible now.
        """


class AuditedAgent(msgspec.Struct, frozen=True):
    """The services of the running agent for checks.

    Attributes:
        replica: Its id.
        store: Its session to ZooKeeper.
        barrier: Makes reads at least as new as this moment; returns the end of the log.
        applied: The snapshot CSN.
        wait: Waits for a CSN to be applied, for a bounded time; returns whether it is applied.
        outcome: Returns how a transaction ended; fences no replica.
        undecided_outcome: The same for a transaction with undecided rows here; it is never too old.
        locks: Returns all locks of the cluster.
        members: Returns all replicas, and whether they give a sign of life.
        own_pins: Returns the ids of the pins that this replica's clients hold.
        now_ms: Returns the time of the retention clock (Unix, ms); for the thread of the event loop.
        labels_kept_s: A label is kept for at least so many seconds after its commit.
        stream_labels_kept_s: The same for a streaming query's label, after the commit of its last batch.
    """

    replica: ReplicaId
    store: Store
    barrier: Callable[[], Awaitable[Csn]]
    applied: Callable[[], Csn]
    wait: Callable[[Csn], Awaitable[bool]]
    outcome: Callable[[Tid], Awaitable[Outcome]]
    undecided_outcome: Callable[[Tid], Awaitable[Outcome]]
    locks: Callable[[], Awaitable[list[LockInfo]]]
    members: Callable[[], Mapping[ReplicaId, bool]]
    own_pins: Callable[[], Collection[str]]
    now_ms: Callable[[], int]
    labels_kept_s: float
    stream_labels_kept_s: float


class CatalogCheck:
    """The rules of a rule set, over one state of the catalog.

    Args:
        scratch: The facts.
        rules: The rules.
        facts: The log, read on before each run.
        findings_max: Most findings of each rule.
        disk: Data directory to walk after the read of the catalog, or None.
    """

    def __init__(
        self,
        scratch: AuditDatabase,
        rules: RuleSet,
        facts: LogFacts,
        *,
        findings_max: int,
        disk: Path | None = None,
    ) -> None:
        self._scratch, self._rules, self._facts = scratch, rules, facts
        self._findings_max, self._disk = findings_max, disk
        self.name = rules.check

    async def run(self) -> CheckResult:
        """Read the log up to the snapshot CSN, then the catalog, then the disk; and compare them.

        Raises:
            UnavailableError: The log is cut faster than it can be read.
        """
        for _ in range(_LOG_TRIES):
            if await self._facts.extend(Csn(await asyncio.to_thread(self._scratch.meta, "snapshot_csn"))):
                return await asyncio.to_thread(self._compare)
        raise UnavailableError(
            f"the log was cut {_LOG_TRIES} times while it was read: commits are faster than the audit; ask "
            "for it again when fewer are made, or raise log_keep_records"
        )

    def _compare(self) -> CheckResult:
        scratch = self._scratch
        with scratch.one_state():
            if self._disk is not None:
                scratch.clear("disk")
                scratch.add("disk", walk(self._disk))
            args = {
                "s": self._facts.end,
                "log_from": self._facts.log_from,
                "horizon": scratch.meta("horizon"),
                "tail": scratch.meta("tail"),
                "floor": scratch.meta("outcome_floor"),
                "block": BLOCK_BYTES,
                "digest": BLOCK_DIGEST_BYTES,
            }
            found = frozenset(
                _finding(self._rules.check, rule, row)
                for rule in self._rules.rules
                for row in islice(scratch.rows(rule.sql, args), self._findings_max)
            )
            return CheckResult(sum(scratch.count(sql) for sql in self._rules.counts), found)


def _finding(check: str, rule: Rule, row: sqlite3.Row) -> AuditFinding:
    fields: dict[str, Any] = dict(zip(row.keys(), row, strict=True))
    if fields.get("table") == "":  # a manifest
        del fields["table"]
    return AuditFinding(
        check=check, fault=rule.fault, severity=rule.severity, next_step=rule.next_step, **fields
    )


def walk(data_dir: Path) -> Iterator[tuple[str, int]]:
    """Yield (path below the data directory, bytes) of all files in ``parts`` and ``packs``."""
    todo = [data_dir / top for top in _TOPS]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(Path(entry.path))
                    continue
                try:
                    size = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # deleted since the folder was read
                yield os.path.relpath(entry.path, data_dir), size


class LockCheck:
    """Check that every lock has an owner that needs it, and that every removal has its lock."""

    name = judgements.LOCKS

    def __init__(self, scratch: AuditDatabase, facts: LogFacts, cluster: AuditedAgent) -> None:
        self._scratch, self._facts, self._cluster = scratch, facts, cluster

    async def run(self) -> CheckResult:
        """Read removals and marks, then the locks, then each replica's progress: a lock outlives its use."""
        cluster, znodes = self._cluster, Znodes(self._cluster.store, self.name)
        await cluster.barrier()
        before = await znodes.csn(tree.TAIL)
        removals = await asyncio.to_thread(self._removals, before)
        locks = await cluster.locks()
        outcomes = await _outcomes({lock.tid for lock in locks}, cluster.outcome)
        tail = await znodes.csn(tree.TAIL)
        needed_from = await locks_needed_from(cluster.store, tail)
        if needed_from is None:
            raise UnavailableError(
                "expected the same replicas before and after their progress was read, found others, or "
                "ZooKeeper could not be read; ask for the audit again"
            )
        silent = {replica for replica, alive in cluster.members().items() if not alive}
        found = [
            *judgements.stale_locks(locks, outcomes, tail=tail, silent=silent),
            *judgements.unlocked_removals(
                (one for one in removals if one.csn is None or one.csn >= needed_from), locks
            ),
            *znodes.unreadable,
        ]
        return CheckResult(len(locks) + len(removals), frozenset(found))

    def _removals(self, tail: Csn) -> list[PartRemoval]:
        """Return the marks here, and the removals of the log that some replica may not have applied."""
        sql = """
            SELECT part, table_name, path, removal_tid AS tid, NULL AS csn
            FROM parts WHERE removal_tid IS NOT NULL AND removal_csn IS NULL
            UNION ALL SELECT r.part, r.table_name, p.path, r.tid, r.csn
            FROM log_removals r JOIN parts p USING (part) WHERE r.csn >= :tail
        """
        with self._scratch.one_state():
            return [
                PartRemoval(
                    PartId(row["part"]), TableId(row["table_name"]), row["path"], Tid.parse(row["tid"]),
                    None if row["csn"] is None else Csn(row["csn"]),
                )
                for row in self._scratch.rows(sql, {"tail": tail})
            ]  # fmt: skip


class UndecidedCheck:
    """Check that undecided rows here belong to running transactions.

    From the second run on only the transactions of the run before are checked again: no finding about
    another one can have lasted.
    """

    name = judgements.UNDECIDED
    _SQL = """
        SELECT tid FROM prepared UNION SELECT DISTINCT creation_tid FROM parts WHERE creation_csn IS NULL
        UNION SELECT DISTINCT removal_tid FROM parts
        WHERE removal_tid IS NOT NULL AND removal_csn IS NULL
    """
    _LANDED = "SELECT DISTINCT creation_tid AS tid FROM parts WHERE creation_csn IS NULL AND kind = 'landed'"

    def __init__(self, scratch: AuditDatabase, cluster: AuditedAgent) -> None:
        self._scratch, self._cluster = scratch, cluster
        self._seen: set[str] | None = None

    async def run(self) -> CheckResult:
        """Read the undecided rows, and request the outcomes of their transactions."""
        applied = self._cluster.applied()
        tids = await asyncio.to_thread(self._read, self._SQL)
        landed = await asyncio.to_thread(self._read, self._LANDED)
        again = tids if self._seen is None else tids & self._seen
        self._seen = tids
        outcomes = await _outcomes({Tid.parse(tid) for tid in again}, self._cluster.undecided_outcome)
        by_tid = {str(tid): outcome for tid, outcome in outcomes.items()}
        found = judgements.left_undecided(by_tid, applied, landed)
        return CheckResult(len(tids), frozenset(found))

    def _read(self, sql: str) -> set[str]:
        return {row["tid"] for row in self._scratch.rows(sql)}


class LabelCheck:
    """Check that every label names a transaction committed under it, and every kept one has its znode."""

    name = judgements.LABELS

    def __init__(self, scratch: AuditDatabase, cluster: AuditedAgent) -> None:
        self._scratch, self._cluster = scratch, cluster

    async def run(self) -> CheckResult:
        """Read the outcomes with labels, then the labels; then request the outcomes that are not here."""
        cluster, znodes = self._cluster, Znodes(self._cluster.store, self.name)
        kept = await asyncio.to_thread(self._kept, cluster.now_ms())
        repeated = await asyncio.to_thread(self._repeated)
        skipped = await asyncio.to_thread(self._skipped)
        await cluster.barrier()
        labels = await znodes.labels()
        here = await asyncio.to_thread(self._committed, [label.tid for label in labels])
        outcomes: dict[str, Outcome | None] = {tid: Committed(csn) for tid, (_, csn) in here.items()}
        for label in labels:
            if label.tid not in outcomes:
                outcomes[label.tid] = await _outcome(label.tid, cluster.outcome)
        labelled = {tid: one for tid, (one, _) in here.items()}
        found = [
            *judgements.dangling_labels(labels, outcomes, labelled, skipped),
            *judgements.missing_labels(kept, labels, skipped),
            *judgements.repeated_batches(repeated),
            *znodes.unreadable,
        ]
        return CheckResult(len(labels) + len(kept), frozenset(found))

    def _skipped(self) -> set[str]:
        sql = "SELECT value AS tid FROM skipped_records, json_each(skipped_records.tids)"
        return {row["tid"] for row in self._scratch.rows(sql)}

    def _kept(self, now_ms: int) -> list[Labelled]:
        sql = """
            SELECT * FROM (
                SELECT tid, label, batch, time_ms, max(csn) FROM outcomes WHERE label IS NOT NULL
                GROUP BY label
            ) WHERE time_ms > CASE WHEN batch IS NULL THEN :after ELSE :streams_after END
        """
        cluster = self._cluster
        args = {
            "after": now_ms - int(cluster.labels_kept_s * 1000),
            "streams_after": now_ms - int(cluster.stream_labels_kept_s * 1000),
        }
        return [_labelled(row) for row in self._scratch.rows(sql, args)]

    def _repeated(self) -> list[tuple[Labelled, Csn, int]]:
        """Return batches that are not above their label's previous batch, while that label was still kept."""
        sql = """
            SELECT * FROM (
                SELECT tid, label, batch, csn, time_ms, lag(batch) OVER w AS before,
                       lag(time_ms) OVER w AS before_ms
                FROM outcomes WHERE batch IS NOT NULL WINDOW w AS (PARTITION BY label ORDER BY csn)
            ) WHERE batch <= before AND time_ms - before_ms < :kept
        """
        args = {"kept": int(self._cluster.stream_labels_kept_s * 1000)}
        return [
            (_labelled(row), Csn(row["csn"]), int(row["before"])) for row in self._scratch.rows(sql, args)
        ]

    def _committed(self, tids: Iterable[str]) -> dict[str, tuple[Labelled, Csn]]:
        sql = "SELECT tid, csn, label, batch FROM outcomes WHERE tid = :tid"
        return {
            tid: (_labelled(row), Csn(row["csn"]))
            for tid in tids
            for row in self._scratch.rows(sql, {"tid": tid})
        }


def _labelled(row: sqlite3.Row) -> Labelled:
    return Labelled(row["tid"], row["label"], row["batch"])


class PinCheck:
    """Check that every pin has an owner, and promises only what is kept."""

    name = judgements.PINS

    def __init__(self, cluster: AuditedAgent) -> None:
        self._cluster = cluster

    async def run(self) -> CheckResult:
        """Read the horizon, then the pins, then the end of the log."""
        cluster, znodes = self._cluster, Znodes(self._cluster.store, self.name)
        await cluster.barrier()
        horizon = await znodes.csn(tree.HORIZON)
        pins = await znodes.pins()
        found = judgements.stray_pins(
            pins,
            members=cluster.members(),
            replica=cluster.replica,
            known=cluster.own_pins(),
            horizon=horizon,
            end=await cluster.barrier(),
        )
        return CheckResult(len(pins), frozenset([*found, *znodes.unreadable]))


class TableCheck:
    """Check that ZooKeeper and the catalog have the same definitions."""

    name = judgements.TABLES

    def __init__(self, scratch: AuditDatabase, cluster: AuditedAgent) -> None:
        self._scratch, self._cluster = scratch, cluster

    async def run(self) -> CheckResult:
        """Read the znodes, then the end of the log; once that is applied, or overdue, read the catalog."""
        cluster, znodes = self._cluster, Znodes(self._cluster.store, self.name)
        await cluster.barrier()
        there = await znodes.tables()
        complete = await cluster.wait(await cluster.barrier())
        here = await asyncio.to_thread(self._read)
        found = judgements.differing_tables(there, here, complete=complete)
        return CheckResult(len(there.keys() | here.keys()), frozenset([*found, *znodes.unreadable]))

    def _read(self) -> dict[TableId, Definition]:
        sql = "SELECT id, max(version) AS version, definition, from_csn FROM tables GROUP BY id"
        return {
            TableId(row["id"]): Definition(
                row["version"], msgspec.json.decode(row["definition"]), Csn(row["from_csn"])
            )
            for row in self._scratch.rows(sql)
        }


class TagCheck:
    """Check that ZooKeeper and the catalog have the same tags."""

    name = judgements.TAGS
    _TRIES: Final = 5

    def __init__(self, scratch: AuditDatabase, cluster: AuditedAgent) -> None:
        self._scratch, self._cluster = scratch, cluster

    async def run(self) -> CheckResult:
        """Read the znode, the end of the log, the catalog once that is applied, and the znode again.

        A catalog that is behind is not compared, nor one beside which tags come and go at each try.
        """
        cluster = self._cluster
        for _ in range(self._TRIES):
            znodes = Znodes(cluster.store, self.name)
            await cluster.barrier()
            version, there = await znodes.tags()
            complete = await cluster.wait(await cluster.barrier())
            here = await asyncio.to_thread(self._read)
            if not complete:
                break
            if there is None or (await znodes.tags())[0] == version:
                found = () if there is None else judgements.differing_tags(there, here)
                return CheckResult(len(here), frozenset([*found, *znodes.unreadable]))
        return CheckResult(0, frozenset())

    def _read(self) -> dict[str, Csn]:
        return {row["name"]: Csn(row["csn"]) for row in self._scratch.rows("SELECT name, csn FROM tags")}


class ProgressCheck:
    """Check that this replica has promised no more than it has, and that ZooKeeper keeps what it needs."""

    name = judgements.PROGRESS

    def __init__(self, scratch: AuditDatabase, cluster: AuditedAgent) -> None:
        self._scratch, self._cluster = scratch, cluster

    async def run(self) -> CheckResult:
        """Read values that only grow: of each pair the smaller side first."""
        cluster, znodes = self._cluster, Znodes(self._cluster.store, self.name)
        await cluster.barrier()
        published = await znodes.published(cluster.replica)
        tail_before = await znodes.csn(tree.TAIL)
        keys = ("snapshot_csn", "tail", "horizon")
        applied, noted_tail, noted_horizon = await asyncio.to_thread(
            lambda: [Csn(self._scratch.meta(key)) for key in keys]
        )
        await cluster.barrier()
        found = judgements.false_progress(
            published,
            applied,
            tail_before=tail_before,
            tail=await znodes.csn(tree.TAIL),
            horizon=await znodes.csn(tree.HORIZON),
            noted_tail=noted_tail,
            noted_horizon=noted_horizon,
        )
        return CheckResult(5, frozenset(found))


class StructureCheck:
    """Have SQLite check the structure of the catalog.

    Args:
        deep: Whether to compare all rows with all indexes too.
    """

    name = "catalog"
    _LINES_MAX: Final = 100

    def __init__(self, scratch: AuditDatabase, *, deep: bool) -> None:
        self._scratch = scratch
        self._pragma = "integrity_check" if deep else "quick_check"

    async def run(self) -> CheckResult:
        """Run SQLite's check."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> CheckResult:
        sql = f"PRAGMA catalog.{self._pragma}({self._LINES_MAX})"
        lines = [str(row[0]) for row in self._scratch.rows(sql)]
        found = [
            AuditFinding(
                check=self.name,
                fault="damaged_catalog",
                severity=Severity.ERROR,
                expected="a whole database",
                found=line,
                next_step="stop this agent and let it clone from another replica",
            )
            for line in lines
            if line != "ok"
        ]
        return CheckResult(self._scratch.count("PRAGMA catalog.page_count"), frozenset(found))


async def _outcomes(
    tids: Iterable[Tid], ask: Callable[[Tid], Awaitable[Outcome]]
) -> dict[Tid, Outcome | None]:
    return {tid: await _outcome(str(tid), ask) for tid in tids}


async def _outcome(text: str, ask: Callable[[Tid], Awaitable[Outcome]]) -> Outcome | None:
    """Request an outcome; None if the home does not exist, or the text is not a tid."""
    try:
        return await ask(Tid.parse(text))
    except (UnknownTransactionError, ValueError):
        return None
