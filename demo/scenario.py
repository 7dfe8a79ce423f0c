"""The demo from the first table to the last check."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from demo import checks, report
from demo.client_process import Setup
from demo.clients import ClientProcesses
from demo.cluster import DemoCluster
from demo.failure import DemoError, Findings
from demo.narrator import Narrator
from demo.nemesis import Nemesis
from demo.rounds import FaultKind, Round, RoundRunner
from demo.second_opinion import SecondOpinion
from demo.writer import OrderKeys
from tidelock.client import Database
from tidelock.wire.log import LogEntry
from workloads import checker, history
from workloads.agents import Agents
from workloads.compare import first_difference
from workloads.history import CallEnd, Recorder
from workloads.spark_session import QUICK_START, session
from workloads.tpch import data, queries
from workloads.tpch.data import Loaded
from workloads.tpch.tables import TABLES

#: The replica that Spark is pinned to.
VICTIM: Final = "r1"
WRITERS: Final = 12
ORDERS_PER_BATCH: Final = 10
#: Between two transactions of one writer, in seconds, while they write at full pace. Twelve writers could
#: commit much more often; but two cores also run Spark, DuckDB, three agents and ZooKeeper, and every
#: commit leaves two small parts for each later query to read (merging them is not built yet).
FULL_PACE_S: Final = 0.5
#: The same while they go on for as long as Spark reads.
CALM_PACE_S: Final = 20.0
#: Fewer commits than this per second of full pace are too few to call them concurrent.
COMMITS_PER_S_MIN: Final = 20
#: Group commit is the work of one home: commits that arrive there while a record is being written share the
#: next one. So all threads of the burst commit at one replica, wave by wave.
BURST_REPLICA: Final = "r2"
BURST_THREADS: Final = 64
BURST_BATCHES: Final = 300
TIDS_PER_CSN_MIN: Final = 4.0
#: How often a strike that hit no running task is repeated, the first one included.
TRIES: Final = 3
#: How long a struck replica may take to come back, in seconds.
BACK_TIMEOUT_S: Final = 90.0
CLIENT_TIMEOUT_S: Final = 30.0
LOG_PAGE_RECORDS: Final = 1000
#: The rounds while the writers write.
PLAN: Final = (
    FaultKind.UNDISTURBED,
    FaultKind.KILLED,
    FaultKind.UNDISTURBED,
    FaultKind.FROZEN,
    FaultKind.UNDISTURBED,
)

#: More settings of Spark.
_SPARK: Final = {
    # More and shorter tasks than by default, so that a replica can be killed between two: one for each
    # file that lists the small parts of 64 commits, and some for the load.
    "spark.sql.files.maxPartitionBytes": "4m",
    # Each commit leaves a small part, and to look for pages in it takes longer than to read all of it.
    "spark.hadoop.parquet.filter.columnindex.enabled": "false",
    # The status tracker tells of every task at once.
    "spark.ui.liveUpdate.period": "0",
}

Log = list[LogEntry]


@dataclass(frozen=True, slots=True)
class WriterTotals:
    """The results of the writers.

    Attributes:
        begin_ms: Time at which they began, in ms since 1970.
        commits: Number of commits before the burst.
        burst_csn: The largest CSN before the burst.
        burst_s: How long the burst took.
        sent_again: See `report.CommitCounts`.
        asked: See `report.CommitCounts`.
    """

    begin_ms: float
    commits: int
    burst_csn: int
    burst_s: float
    sent_again: int
    asked: int


class DemoScenario:
    """One run of the demo on a cluster that is up.

    Args:
        folder: For generated data, histories, copies of parts and Spark's files.
        seconds: How long the writers write at full pace.
        token: The agents' shared secret, if they have one.
        spark: Settings that bring Spark to a master; without them it runs in this process.
    """

    def __init__(
        self,
        cluster: DemoCluster,
        folder: Path,
        narrator: Narrator,
        *,
        scale_factor: float,
        seconds: float,
        token: str | None,
        spark: Mapping[str, str] | None = None,
    ) -> None:
        self.findings = Findings()
        self._cluster = cluster
        self._folder = folder
        self._narrator = narrator
        self._scale_factor = scale_factor
        self._seconds = seconds
        self._token = token
        self._spark = {**_SPARK, **(spark or {})}
        self._agents = Agents(cluster, token=token)
        self._history = folder / "history"
        others = [replica for replica in cluster.replicas if replica != VICTIM]
        self._opinions = itertools.cycle(
            SecondOpinion(self._agents, replica, folder / "copies") for replica in others
        )
        self._rounds: list[Round] = []

    def run(self) -> report.DemoReport:
        """Run everything; failed checks are in `findings`.

        DemoError if the demo cannot reach its end; other errors are raised unchanged.
        """
        self._history.mkdir(parents=True)
        with self._cluster.connect() as db, Recorder(self._history / "demo.jsonl") as self._notes:
            loaded, load_csn = self._load(db)
            with self._session(db) as reader, self._clients(loaded) as clients:
                batch = [queries.orders_and_lines(loaded.last_orderkey), queries.Q1, queries.Q3, queries.Q18]
                # The first round is on the loaded tables alone; it also warms Spark up.
                with self._narrator.busy(lambda: "Spark reads what was loaded"):
                    self._round(reader, FaultKind.UNDISTURBED, batch, load_csn - 1)
                written = self._rounds_under_writes(db, reader, clients, batch)
                # The one query that reads every order checks the rows of the burst.
                with self._narrator.busy(lambda: "Spark reads what the burst has brought"):
                    self._round(reader, FaultKind.UNDISTURBED, batch[:1], written.burst_csn)
            return self._conclude(db, load_csn, written)

    # -- before
    # ----------------------------------------------------------------------------------------------

    def _load(self, db: Database) -> tuple[Loaded, int]:
        source_folder = self._folder / "tpch"
        source_folder.mkdir(parents=True)
        with self._narrator.busy(lambda: f"TPC-H at scale factor {self._scale_factor:g}"):
            data.generate(source_folder, self._scale_factor)
            with data.TpchRows(source_folder) as source:
                loaded = source.loaded()
                data.create_tables(db)
                result = data.load(db, source)
        assert result.csn is not None
        written = {"key": checks.LOADED_KEY, "tid": result.tid}
        self._notes.note("invoke", "write", "load", rows=checks.loaded_rows(loaded), **written)
        self._notes.note(CallEnd.OK, "write", "load", csn=result.csn, **written)
        self._narrator.say(
            f"{sum(loaded.rows.values()):,} rows in {len(TABLES)} tables by one transaction, CSN {result.csn}"
        )
        return loaded, result.csn

    @contextmanager
    def _session(self, db: Database) -> Iterator[RoundRunner]:
        with session(self._folder, app="tidelock demo", settings=self._spark, jvm=QUICK_START) as spark:
            self._narrator.say(
                f"Spark {spark.version} runs as {spark.sparkContext.master}, pinned to {VICTIM}, "
                "failover allowed"
            )
            nemesis = Nemesis(spark.sparkContext, self._cluster, self._agents, VICTIM)
            yield RoundRunner(spark, db, self._agents, nemesis, VICTIM)

    def _clients(self, loaded: Loaded) -> ClientProcesses:
        keys = OrderKeys(loaded.last_orderkey, WRITERS + BURST_THREADS, ORDERS_PER_BATCH)
        return ClientProcesses(
            [
                Setup(
                    urls=self._cluster.urls,
                    replica=replica,
                    history=str(self._history / "clients.jsonl"),
                    scale_factor=self._scale_factor,
                    keys=asdict(keys),
                    token=self._token,
                    timeout_s=CLIENT_TIMEOUT_S,
                )
                for replica in self._cluster.replicas
            ],
            self._folder,
        )

    # -- while the writers write
    # -----------------------------------------------------------------------------

    def _rounds_under_writes(
        self, db: Database, reader: RoundRunner, clients: ClientProcesses, batch: Sequence[queries.TpchQuery]
    ) -> WriterTotals:
        begin, begin_ms = time.monotonic(), time.time() * 1000
        clients.start(
            WRITERS, interval_s=FULL_PACE_S, calm_after_s=self._seconds, calm_interval_s=CALM_PACE_S
        )
        self._narrator.say(
            f"{WRITERS} writers, {WRITERS // len(self._cluster.replicas)} on each replica, begin"
        )
        for kind in PLAN:
            with self._narrator.busy(lambda: f"{clients.commits} commits; Spark reads"):
                self._until_hit(reader, kind, batch)
        with self._narrator.busy(lambda: f"{clients.commits} commits"):
            time.sleep(max(0.0, begin + self._seconds - time.monotonic()))
            clients.rest()
        commits = clients.commits
        self._narrator.say(f"the writers rest after {commits:,} commits")
        burst_csn = self._end_of_log(db)
        begin = time.monotonic()
        with self._narrator.busy(lambda: f"closing burst: {clients.commits - commits} commits"):
            clients.burst(BURST_REPLICA, WRITERS, BURST_THREADS, BURST_BATCHES)
        burst_s = time.monotonic() - begin
        self._narrator.say(
            f"closing burst: {BURST_BATCHES} commits by {BURST_THREADS} threads on {BURST_REPLICA} "
            f"in {burst_s:.1f} s"
        )
        return WriterTotals(begin_ms, commits, burst_csn, burst_s, clients.sent_again, clients.asked)

    def _until_hit(self, reader: RoundRunner, kind: FaultKind, batch: Sequence[queries.TpchQuery]) -> None:
        """Run a round, and again while a strike hits no running task."""
        for _ in range(TRIES):
            done = self._round(reader, kind, batch, self._rounds[-1].csn)
            if kind is FaultKind.UNDISTURBED or done.hit(VICTIM):
                return
            self._narrator.say(f"round {done.number}: no running task was hit, so once more", style="yellow")
        raise DemoError(f"{VICTIM} was to be {kind.value} while a task ran, and {TRIES} tries hit none")

    def _round(
        self, reader: RoundRunner, kind: FaultKind, batch: Sequence[queries.TpchQuery], above_csn: int
    ) -> Round:
        done = reader.round(len(self._rounds), kind, batch, above_csn=above_csn)
        if done.strike is not None and kind.signum is not None:
            done.catch_up_s = reader.nemesis.bring_back(kind.signum, BACK_TIMEOUT_S)
        self._rounds.append(done)
        rows = checks.balances(done.answers[0].rows)
        self._notes.note(CallEnd.OK, "read", "Spark", replica=VICTIM, csn=done.csn, rows=rows)
        second = next(self._opinions)
        self._judge(done, above_csn, second)
        compared = sum(len(answer.rows) for answer in done.answers)
        self._narrator.say(
            f"round {done.number} at CSN {done.csn}: {self._description(done)}; "
            f"{compared:,} rows compared with DuckDB's over the parts of {second.replica}"
        )
        return done

    def _judge(self, done: Round, above_csn: int, second: SecondOpinion) -> None:
        where = f"round {done.number}, CSN {done.csn}"
        self._check(
            f"{where}: the CSN grows",
            None if done.csn > above_csn else f"{done.csn} is not above {above_csn}",
        )
        self._check(f"{where}: every order is whole", checks.every_order_is_whole(done.answers[0].rows))
        served = done.served[VICTIM].byte_count
        self._check(f"{where}: Spark reads from {VICTIM}", None if served else f"{VICTIM} served no byte")
        if done.calm is not None:
            difference = first_difference(done.calm.rows, done.target.rows)
            self._check(
                f"{where}: {done.target.query.name} twice, before and during the strike",
                difference and f"the two differ in {difference}",
            )
        opinions = second.answers(done.csn, [answer.query for answer in done.answers])
        for answer, opinion in zip(done.answers, opinions, strict=True):
            difference = first_difference(answer.rows, opinion)
            name = f"{where}: {answer.query.name} in Spark and in DuckDB over {second.replica}"
            self._check(name, difference and f"Spark's and DuckDB's differ in {difference}")

    def _check(self, name: str, finding: str | None) -> None:
        if violation := self.findings.check(name, finding):
            self._narrator.say(f"violation: {violation}", style="bold red")

    def _description(self, done: Round) -> str:
        took = f"{done.target.query.name} {done.target.duration_s:.1f} s"
        if done.strike is None:
            return f"{took}, {sum(answer.duration_s for answer in done.answers):.1f} s in all"
        others = sum(served.byte_count for replica, served in done.served.items() if replica != VICTIM)
        return (
            f"{VICTIM} {done.kind.value} in stage {done.strike.stage} with {done.strike.done} of "
            f"{done.strike.tasks} tasks done; {took}; "
            f"{report.megabytes(done.served[VICTIM].byte_count)} from {VICTIM}, "
            f"{report.megabytes(others)} from the others; back in {done.catch_up_s:.1f} s"
        )

    # -- after
    # -----------------------------------------------------------------------------------------------

    def _conclude(self, db: Database, load_csn: int, written: WriterTotals) -> report.DemoReport:
        with self._narrator.busy(
            lambda: "the clients' history against every round, every replica, and the log"
        ):
            log = _log_after(db, load_csn - 1)
            self._note_parts(log, load_csn)
            recorded = history.load(*self._history.iterdir())
            self._judge_history(recorded)
        csns = [write.csn for write in _batches(recorded) if write.csn is not None]
        burst_per_csn = history.tids_per_csn([csn for csn in csns if csn > written.burst_csn])
        too_few = COMMITS_PER_S_MIN * self._seconds
        self._check(
            f"at least {too_few:.0f} commits by the writers",
            None if written.commits >= too_few else f"only {written.commits}",
        )
        self._check(
            f"at least {TIDS_PER_CSN_MIN:g} tids per CSN in the burst",
            None if burst_per_csn >= TIDS_PER_CSN_MIN else f"only {burst_per_csn:.1f}",
        )
        struck = [
            item for item in self._rounds if item.kind is not FaultKind.UNDISTURBED and item.hit(VICTIM)
        ]
        return report.DemoReport(
            scale_factor=self._scale_factor,
            victim=VICTIM,
            commits=report.CommitCounts(
                writers=WRITERS,
                full_pace_s=self._seconds,
                at_full_pace=checks.committed_between(
                    log, written.begin_ms, written.begin_ms + self._seconds * 1000
                ),
                total=written.commits,
                per_csn=history.tids_per_csn([csn for csn in csns if csn <= written.burst_csn]),
                burst=len(csns) - written.commits,
                burst_threads=BURST_THREADS,
                burst_s=written.burst_s,
                burst_per_csn=burst_per_csn,
                sent_again=written.sent_again,
                asked=written.asked,
            ),
            rows=self._rows(db),
            rounds=self._rounds,
            disturbances=[report.disturbance(item, VICTIM) for item in struck],
            findings=self.findings,
            duration_s=self._narrator.elapsed_s,
        )

    def _note_parts(self, log: Log, load_csn: int) -> None:
        """Note the log, and what every replica lists at the CSN of every round."""
        listed: list[list[Any]] = []
        for table in TABLES:
            name = f"default.{table.name}"
            parts = self._agents.parts(VICTIM, load_csn, table.name)
            listed += [[name, *part.facts] for part in parts]
            for done, replica in itertools.product(self._rounds, self._agents.replicas):
                facts = [part.facts for part in self._agents.parts(replica, done.csn, table.name)]
                self._notes.note(
                    CallEnd.OK, "parts", "the end", replica=replica, csn=done.csn, table=name, parts=facts
                )
        self._notes.note(CallEnd.OK, "log", "the end", records=list(checks.log_lines(log, listed)))

    def _judge_history(self, recorded: history.CallHistory) -> None:
        unknown = [write.tid for write in recorded.ended(CallEnd.INFO)]
        self._check(
            "every outcome is known",
            f"not of {len(unknown)} orders, the first one is of {unknown[0]}" if unknown else None,
        )
        violations = checker.check(recorded)
        for invariant in checker.INVARIANTS:
            wrong = [violation.what for violation in violations if violation.invariant == invariant]
            self._check(f"the clients' history keeps {invariant}", "; ".join(wrong) or None)

    def _rows(self, db: Database) -> Mapping[str, int]:
        return {table["name"].removeprefix("default."): int(table["rows"]) for table in db.tables()}

    def _end_of_log(self, db: Database) -> int:
        return int(db.status()["end_csn"])


def _batches(recorded: history.CallHistory) -> list[history.Write]:
    """One write of each transaction of the clients; all orders of a transaction have its tid."""
    return list({write.tid: write for write in recorded.writes if write.key != checks.LOADED_KEY}.values())


def _log_after(db: Database, csn: int) -> Log:
    """All records after a CSN."""
    records: Log = []
    while page := db.log(csn + 1, limit=LOG_PAGE_RECORDS):
        records += page
        csn = page[-1]["csn"]
    return records
