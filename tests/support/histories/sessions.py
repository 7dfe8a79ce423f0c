"""Sessions that carry out a plan on a real cluster and write down what they are told; `replay` judges it.

One after the other in the order of the plan (the same interleaving each time, but for what the cluster does
by itself), or each session in a thread of its own. Nothing that goes wrong is hidden: what a client may have
to bear is part of the story, everything else ends the test.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from tests.support.histories.evidence import nothing_left, read_log, require_clean_audit
from tests.support.histories.replay import Fed, Life, Ran, Refusal, Seen, Story, judge
from tests.support.histories.session_plan import (
    Begin,
    Commit,
    Kill,
    Look,
    Optimize,
    Rollback,
    Run,
    Start,
    Step,
    Stop,
)
from tests.support.histories.table_model import (
    PARTITION_BY,
    SCHEMA,
    Add,
    Delete,
    DropPartition,
    Everything,
    Insert,
    Merge,
    MovePartition,
    Read,
    ReplacePartition,
    Rows,
    Statement,
    Truncate,
    Update,
    Upsert,
    as_arrow,
    as_rows,
    from_arrow,
    in_sql,
)
from tests.support.waiting import eventually
from tidelock.client import Database, Transaction
from tidelock.client.values.results import ChangeResult
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.model import AddPart, LogRecord, RecordKind, RemovePart
from tidelock.errors import (
    CommitUnknownError,
    FencedError,
    HeadMovedError,
    NotCommittedError,
    NotEnoughReplicasError,
    SerializationConflictError,
    SnapshotTooOldError,
    TidelockError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)
from workloads.agents import ask
from workloads.history import CallEnd, Logged, LogLine

#: The errors that a session may get at any time.
_CONFLICTS: Final = (SerializationConflictError, HeadMovedError)
#: And what it may be told where replicas are killed.
_OUTAGES: Final = (
    UnavailableError,
    FencedError,
    TransactionClosedError,
    UnknownTransactionError,
    NotEnoughReplicasError,
    NotCommittedError,
    CommitUnknownError,
)
#: A thread of faults looks so often how far the others are.
_POLL_S: Final = 0.01
_JOIN_S: Final = 240.0
#: How long a commit may be undecided where steps are taken in turn, in seconds: a later step starts its home
#: again.
_COMMIT_IN_TURN_S: Final = 5.0


class Stage:
    """Where plans are carried out: some tables of a running cluster.

    Args:
        cluster: It runs.
        name: Of the tables (`<name>_1`, ...), which must not exist.
        tables: How many.
        properties: Of the tables.
        collected: History is short: old CSNs may be refused.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        name: str,
        *,
        tables: int = 3,
        properties: dict[str, str] | None = None,
        collected: bool = False,
    ) -> None:
        self.cluster = cluster
        self.collected = collected
        names = tuple(f"{name}_{number}" for number in range(1, tables + 1))
        with cluster.connect() as db:
            created = [
                db.create_table(
                    table, SCHEMA, partition_by=PARTITION_BY, sort_by=["k"], properties=properties
                )["csn"]
                for table in names
            ]
        self.story = Story(names, max(created))
        self.faults = False
        self.highest = self.story.created
        self.commit_timeout_s: float | None = None
        self._sessions: dict[str, _Session] = {}
        self._done = 0  # steps
        self._errors: list[BaseException] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._sessions.values():
            session.close()

    # -- carrying out
    # ----------------------------------------------------------------------------------------

    def play(self, plan: Sequence[Step]) -> None:
        """Carry out a plan step by step."""
        self.commit_timeout_s = _COMMIT_IN_TURN_S
        self.faults = any(isinstance(step, Kill | Stop) for step in plan)
        for step in plan:
            self._step(step)

    def play_at_once(self, plan: Sequence[Step]) -> None:
        """Carry out a plan with a thread for each session, one for the looks and one for the faults."""
        self.faults = any(isinstance(step, Kill | Stop) for step in plan)
        actors: dict[str, list[tuple[int, Step]]] = {}
        for number, step in enumerate(plan):
            actors.setdefault(_actor(step), []).append((number, step))
        threads = [
            threading.Thread(target=self._act, args=(actor, steps), name=actor)
            for actor, steps in actors.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_JOIN_S)
        assert not any(thread.is_alive() for thread in threads), "a session hangs"
        if self._errors:
            raise self._errors[0]

    def _act(self, actor: str, steps: Sequence[tuple[int, Step]]) -> None:
        try:
            for number, step in steps:
                while actor == _FAULTS and self._done < number and not self._errors:
                    time.sleep(_POLL_S)
                if self._errors:
                    return
                self._step(step)
        except BaseException as error:
            self._errors.append(error)

    def _step(self, step: Step) -> None:
        match step:
            case Begin() | Run() | Commit() | Rollback():
                if step.session not in self._sessions:
                    self._sessions[step.session] = _Session(self, step.session)
                self._sessions[step.session].step(step)
            case Look(replica, share):
                csn = self.story.created + round(share * (self.highest - self.story.created))
                with self.bearing():
                    self.look(replica, csn)
            case Optimize(replica, table):
                with self.bearing(), self.cluster.connect(replica) as db:
                    db.optimize(table, timeout_s=1)
            case Kill(replica):
                self.cluster.kill(replica)
                self.story.crashes.append((replica, time.monotonic_ns()))
            case Stop(replica):
                self.cluster.stop(replica)
                self.story.crashes.append((replica, time.monotonic_ns()))
            case Start(replica):
                self.cluster.start(replica)
        self._done += 1

    @contextlib.contextmanager
    def bearing(self) -> Iterator[None]:
        """Bear what a client may have to bear."""
        try:
            yield
        except SnapshotTooOldError:
            if not self.collected:
                raise
        except _OUTAGES:
            if not self.faults:
                raise

    def look(self, replica: str, csn: int) -> None:
        """Read all tables on a replica at a CSN."""
        with self.cluster.connect(replica) as db, db.snapshot(csn) as snap:
            tables = {table: from_arrow(snap.read(table)) for table in self.story.tables}
        self.story.seen.append(Seen(replica, csn, tables))

    def follow(self, replica: str, since: int, until: int) -> None:
        """Read the change feed of all tables on a replica."""
        with self.cluster.connect(replica) as db:
            for table in self.story.tables:
                told = db.changes(table, since, until).to_table()
                self.story.fed.append(Fed(replica, table, since, until, _by_csn(told)))

    def reached(self, csn: int | None) -> None:
        """Note a CSN that somebody has seen."""
        self.highest = max(self.highest, csn or 0)

    # -- the end
    # ---------------------------------------------------------------------------------------------

    def judge(self, *, commits: int, command: str = "") -> Story:
        """Wait until all replicas are at the end of the log, look at them, and judge everything.

        Args:
            commits: At least so many commits must have been acknowledged, else nothing was tested.
            command: How to run the same again.
        """
        cluster, story = self.cluster, self.story
        cluster.up()
        story.log = tuple(_line(record) for record in read_log(cluster.zk))
        end = story.log[-1].csn
        for replica in cluster.replicas:
            eventually(partial(_reached, cluster, replica, end), what=f"{replica} at CSN {end}")
            self.look(replica, end)
        self._follow_all(end)
        wrong = judge(story)
        assert not wrong, "\n".join(("", *wrong, command))
        assert len([life for life in story.lives if life.end is CallEnd.OK]) >= commits, "too few commits"
        for replica in cluster.replicas:
            nothing_left(cluster.data_dir(replica))
        require_clean_audit(cluster)
        return story

    def _follow_all(self, end: int) -> None:
        """Read the change feed on each replica: of everything on one, from and to any CSN on the others."""
        chance = random.Random(end)
        since, until = self.story.created, end
        for replica in self.cluster.replicas:
            with self.bearing():
                self.follow(replica, since, until)
            since, until = sorted(chance.choices(range(self.story.created, end + 1), k=2))

    def tell(self, path: Path) -> None:
        """Write the story into a file, for people."""
        lines = []
        for life in sorted(self.story.lives, key=lambda life: life.began_ns):
            lines.append(f"{life} on {life.replica}")
            lines += [f"    {ran}" for ran in life.ran]
            if life.refusal:
                lines.append(f"    refused: {life.refusal}")
        path.write_text("\n".join(lines), encoding="utf-8")


_FAULTS: Final = "faults"


def _actor(step: Step) -> str:
    match step:
        case Begin() | Run() | Commit() | Rollback():
            return step.session
        case Look() | Optimize():
            return "looks"
        case _:
            return _FAULTS


def _reached(cluster: LocalCluster, replica: str, csn: int) -> bool:
    with contextlib.suppress(TidelockError):
        return int(ask(cluster, replica, "/status")["snapshot_csn"]) >= csn
    return False


def _by_csn(told: pa.Table) -> dict[int, tuple[Rows, Rows]]:
    """Return deleted and inserted rows by CSN."""
    found: dict[int, tuple[Rows, Rows]] = {}
    sides = {"delete": 0, "update_preimage": 0, "insert": 1, "update_postimage": 1}
    csns, kinds = (told[name].to_pylist() for name in ("_commit_csn", "_change_type"))
    for csn, kind, row in zip(csns, kinds, as_rows(told), strict=True):
        found.setdefault(csn, (Counter(), Counter()))[sides[kind]][row] += 1
    return found


def _line(record: LogRecord) -> LogLine:
    tids = []
    for one in record.record.tids:
        assert one.manifest is None, "plans make no transaction that needs a manifest"
        removed = tuple(entry.part for entry in one.entries if isinstance(entry, RemovePart))
        added = any(isinstance(entry, AddPart | RemovePart) for entry in one.entries)
        if added:
            tids.append(Logged(one.tid, (), removed, compaction=not one.data_change))
    return LogLine(record.csn, tuple(tids), record.record.kind is RecordKind.END)


class _Session:
    """One client; it hops from replica to replica, and what it has seen goes with it."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage, self._name = stage, name
        self._dbs: dict[str, Database] = {}
        self._seen = stage.story.created
        self._number = 0
        self._tx: Transaction | None = None
        self._life: Life | None = None

    def step(self, step: Begin | Run | Commit | Rollback) -> None:
        """Do the next thing; nothing if the transaction that it belongs to has ended."""
        if isinstance(step, Begin):
            self._begin(step)
            return
        tx, life = self._tx, self._life
        if tx is None or life is None:
            return
        began_ns = time.monotonic_ns()
        try:
            match step:
                case Run(_, statement):
                    life.failed = statement
                    life.ran.append(self._run(tx, statement))
                    life.failed = None
                case Commit():
                    life.csn = tx.commit(timeout_s=self._stage.commit_timeout_s).csn
                    self._end(life, CallEnd.OK)
                case Rollback():
                    tx.rollback()
                    self._end(life, CallEnd.FAIL, "rolled back")
        except TidelockError as error:
            self._refused(tx, life, error, began_ns)

    def _begin(self, step: Begin) -> None:
        self._number += 1
        began_ns = time.monotonic_ns()
        with self._stage.bearing():
            if step.replica not in self._dbs:
                self._dbs[step.replica] = self._stage.cluster.connect(step.replica)
            tx = self._dbs[step.replica].begin(isolation=step.isolation, min_csn=self._seen)
            name = f"{self._name}-{self._number}"
            life = Life(name, step.replica, step.isolation, tx.tid, tx.snapshot_csn, began_ns)
            self._stage.story.lives.append(life)
            self._tx, self._life = tx, life
            self._saw(tx.snapshot_csn)

    def _run(self, tx: Transaction, statement: Statement) -> Ran:
        told, read = carry_out(tx, statement)
        return Ran(statement, self._read_at(tx), told, read)

    def _read_at(self, tx: Transaction) -> int:
        """The CSN of the last statement: under read committed its home has chosen it."""
        life = self._life
        if life is None or life.isolation != "read_committed":
            return tx.snapshot_csn
        csn = int(ask(self._stage.cluster, life.replica, f"/transactions/{tx.tid}")["statement_csn"])
        self._saw(csn)
        return csn

    def _refused(self, tx: Transaction, life: Life, error: TidelockError, began_ns: int) -> None:
        unknown = isinstance(error, CommitUnknownError)
        if isinstance(error, SerializationConflictError):
            at, now = tx.snapshot_csn, time.monotonic_ns()
            life.refusal = Refusal(life.failed, at, error.details, began_ns, now)
        elif not isinstance(error, _CONFLICTS) and not (self._stage.faults and isinstance(error, _OUTAGES)):
            raise error
        if not unknown:
            with contextlib.suppress(TidelockError):
                tx.rollback()
        if unknown and error.details.get("csn") is not None:  # committed, and not yet applied at home
            life.csn = error.details["csn"]
            self._end(life, CallEnd.OK)
            return
        self._end(life, CallEnd.INFO if unknown else CallEnd.FAIL, repr(error))

    def _end(self, life: Life, end: CallEnd, error: str = "") -> None:
        life.end, life.error, life.ended_ns = end, error, time.monotonic_ns()
        self._tx = self._life = None
        if life.csn is not None:
            self._saw(life.csn)

    def _saw(self, csn: int) -> None:
        self._seen = max(self._seen, csn)
        self._stage.reached(csn)

    def close(self) -> None:
        """End the session."""
        for db in self._dbs.values():
            db.close()


def carry_out(tx: Transaction, statement: Statement) -> tuple[dict[str, int], Rows | None]:
    """Run a statement; returns the numbers of rows that it answers, and the rows of a read."""
    match statement:
        case Read(table, where):
            sql, params = in_sql(where)
            return {}, from_arrow(tx.read(table, where=sql, params=params))
        case Insert(table, rows):
            return {"rows": tx.insert(table, as_arrow(rows)).rows}, None
        case DropPartition(table, p):
            return {"rows": tx.drop_partition(table, {"p": p}).rows}, None
        case Truncate(table):
            return {"rows": tx.truncate(table).rows}, None
        case ReplacePartition(table, p, rows):
            return {"rows": tx.replace_partition(table, {"p": p}, as_arrow(rows)).rows}, None
        case MovePartition(table, p, into):
            return {"rows": tx.move_partition(table, {"p": p}, into).rows}, None
    changed = _change(tx, statement)
    names = {"deleted": "rows_deleted", "updated": "rows_updated", "inserted": "rows_inserted"}
    return {name: getattr(changed, field) for name, field in names.items()}, None


def _change(tx: Transaction, statement: Delete | Update | Upsert | Merge) -> ChangeResult:
    match statement:
        case Delete(table, where):
            sql, params = in_sql(where)
            return tx.delete(table, where=sql, params=params)
        case Update(table, where, change):
            sql, params = in_sql(where)
            condition = None if where == Everything() else sql
            params = [] if condition is None else params
            if isinstance(change, Add):
                return tx.update(table, {"v": "v + ?"}, where=condition, params=[change.v, *params])
            return tx.update(table, {change.column: change.value}, where=condition, params=params)
        case Upsert(table, rows):
            return tx.upsert(table, as_arrow(rows), on=["k"])
        case Merge(table, rows):
            return tx.merge(
                table,
                as_arrow(rows),
                on=["k"],
                when_matched_update={"v": "target.v + source.v"},
                when_matched_delete="source.v % 2 = 1",
            )
