"""`tidelock audit` on three replicas: no finding on a sound cluster, also under load; each planted fault."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults import tampering
from tests.support.faults.tampering import catalog, change_znodes, flip_byte
from tests.support.histories.workload import Workload
from tests.support.rows import SPECIAL_FLOATS
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.client.reads.audit import AuditReport
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import encode_label, encode_pin
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import LabelState, PinState
from tidelock.csnlog.core.store import Create, Delete, Op
from tidelock.errors import TidelockError
from tidelock.exits import Exit
from tidelock.replication.core.lock_rules import OnePart, create_op
from workloads.agents import ask

REPLICAS = ("r1", "r2", "r3")
#: Parts above this size are files of their own.
INLINE_BYTES_MAX = 16 * 1024
SETTINGS = {
    **QUICK,
    "sql_workers": 1,
    "inline_part_bytes_max": INLINE_BYTES_MAX,
    "audit_settle_s": 1.5,
    "lock_sweep_interval_s": 0.3,
    "clean_interval_s": 0.5,
    "compaction": "false",
}
#: Rows of a part that shares a pack, and of one that is a file of its own.
ROWS = {"pack": 10, "file": 10_000}
#: A transaction that its home, which runs, does not know: aborted.
NOBODY = Tid(Csn(2), ReplicaId("r1"), 1, 999_999_999)
NAMES = itertools.count()


@dataclass
class Planted:
    """A fault: its findings by replica, those of a deep audit too, and the function that repairs it."""

    found: set[tuple[str, str]]
    take_back: list[Callable[[], object]] = field(default_factory=list)
    deep: set[tuple[str, str]] = field(default_factory=set)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module, with tables, a removal and a label."""
    return module_cluster(settings=SETTINGS)


def audited(local: LocalCluster, *, deep: bool = False) -> AuditReport:
    """Audit all replicas."""
    with local.connect() as db:
        return db.audit(deep=deep)


def named(report: AuditReport) -> set[tuple[str, str]]:
    """Return the faults with the replicas that have found them."""
    return {(replica, one.fault) for one in report.findings for replica in one.replicas}


def store(local: LocalCluster, kind: str = "pack", **commit: Any) -> tuple[str, str]:
    """Commit a table of one part on all replicas; returns table and part."""
    table = f"default.t{next(NAMES)}"
    numbers = random.Random(table)
    rows = pa.table(
        {
            "k": [numbers.getrandbits(62) for _ in range(ROWS[kind])],
            "f": [numbers.choice(SPECIAL_FLOATS) for _ in range(ROWS[kind])],
        }
    )
    with local.connect("r1") as db:
        db.create_table(table, rows.schema)
        csn = db.insert(table, rows, wait="all", **commit).csn
    (part,) = ask(local, "r1", f"/parts?csn={csn}&table={table}")
    return table, part["part"]


def place(local: LocalCluster, replica: str, part: str) -> tuple[Path, int, int]:
    """Return where the bytes of a part lie on a replica: file, offset, length."""
    sql = "SELECT file, offset, length FROM parts WHERE part = ?"
    ((file, offset, length),) = tampering.rows(local.data_dir(replica), sql, part)
    return local.data_dir(replica) / file, offset, length


def _with_rows(local: LocalCluster, replica: str, sql: str, *args: Any) -> Callable[[], None]:
    """Return what puts a part's row back as it is now, when it was changed by this statement."""
    data_dir = local.data_dir(replica)
    part = args[-1]
    (before,) = tampering.rows(data_dir, "SELECT * FROM parts WHERE part = ?", part)
    with catalog(data_dir) as db:
        assert db.execute(sql, args).rowcount == 1

    def put_back() -> None:
        with catalog(data_dir) as db:
            db.execute("DELETE FROM parts WHERE part = ?", (part,))
            db.execute(f"INSERT INTO parts VALUES ({', '.join('?' * len(before))})", before)

    return put_back


def _with_znodes(local: LocalCluster, *ops: Create) -> Callable[[], None]:
    change_znodes(local.zk, ops)
    deletes: list[Op] = [Delete(op.path, -1) for op in reversed(ops)]
    return lambda: change_znodes(local.zk, deletes)


def surplus_file(local: LocalCluster) -> Planted:
    """A file that no catalog names."""
    file = local.data_dir("r2") / "parts/00/r2-1-100000.parquet"
    file.write_bytes(b"PAR1")
    return Planted({("r2", "surplus_file")}, [file.unlink])


def missing_file(local: LocalCluster) -> Planted:
    """A file that is gone; it is fetched again."""
    _, part = store(local, "file")
    file, _, _ = place(local, "r3", part)
    file.unlink()
    return Planted({("r3", "missing_file")}, [lambda: eventually(file.exists)], {("r3", "damaged_part")})


def flipped_byte(local: LocalCluster) -> Planted:
    """A changed byte in a pack; the part is fetched again, into another pack."""
    _, part = store(local)
    victim = no_holder(local, part)
    file, offset, length = place(local, victim, part)
    flip_byte(file, offset + length // 2)

    def mended() -> None:
        eventually(lambda: place(local, victim, part)[0] != file)

    return Planted(set(), [mended], {(victim, "damaged_part")})


def no_holder(local: LocalCluster, part: str) -> str:
    """Return a replica that got a part after its commit, so that no other replica fetches it there.

    A replica that holds it may still be asked, by a fetch that a push has overtaken. The fetch would find
    the damage before the audit does.
    """
    ((csn,),) = tampering.rows(local.data_dir("r1"), "SELECT creation_csn FROM parts WHERE part = ?", part)
    with local.connect("r1") as db:
        ((holders,),) = [[tid["holders"] for tid in record["tids"]] for record in db.log(csn, limit=1)]
    return min(set(REPLICAS) - set(holders), default="r1")  # pushed to all: no replica fetches


def stale_lock(local: LocalCluster) -> Planted:
    """A lock of a transaction that is not running."""
    table, part = store(local)
    name = TableId(table)
    ops = (Create(tree.lock_dir(name)), create_op(name, OnePart(PartId(part), ""), NOBODY, merge=False))
    return Planted({(replica, "stale_lock") for replica in REPLICAS}, [_with_znodes(local, *ops)])


def dangling_label(local: LocalCluster) -> Planted:
    """A label of a transaction that was never committed."""
    op = Create(tree.label("nobody's"), encode_label(LabelState(str(NOBODY))))
    return Planted({(replica, "dangling_label") for replica in REPLICAS}, [_with_znodes(local, op)])


def missing_label(local: LocalCluster) -> Planted:
    """A commit without its label, so that a second run under the label could commit."""
    label = f"run {next(NAMES)}"
    store(local, label=label)
    ((tid,),) = tampering.rows(local.data_dir("r1"), "SELECT tid FROM outcomes WHERE label = ?", label)
    change_znodes(local.zk, [Delete(tree.label(label), -1)])
    put_back = Create(tree.label(label), encode_label(LabelState(tid)))
    return Planted(
        {(replica, "missing_label") for replica in REPLICAS}, [lambda: change_znodes(local.zk, [put_back])]
    )


def repeated_batch(local: LocalCluster) -> Planted:
    """A batch of a streaming query that one replica records as counted before."""
    label = f"query {next(NAMES)}"
    table, _ = store(local)
    with local.connect("r1") as db:
        rows = db.read(table)
        for batch in (4, 5):
            with db.begin(label, batch=batch) as tx:
                tx.insert(table, rows)
                tx.commit(wait="all")
    sql = "UPDATE outcomes SET batch = ? WHERE label = ? AND batch = ?"

    def change(new: int, old: int) -> None:
        with catalog(local.data_dir("r3")) as db:
            assert db.execute(sql, (new, label, old)).rowcount == 1

    change(3, 5)
    faults = ("repeated_batch", "outcome_differs", "outcomes_differ", "dangling_label")
    return Planted({("r3", fault) for fault in faults}, [lambda: change(5, 3)])


def row_without_file(local: LocalCluster) -> Planted:
    """A row that names a missing file; the file that it named before has no row now."""
    _, part = store(local, "file")
    put_back = _with_rows(local, "r2", "UPDATE parts SET file = 'parts/00/none.parquet' WHERE part = ?", part)
    found = {("r2", "part_without_file"), ("r2", "file_without_part")}
    return Planted(found, [put_back], {("r2", "damaged_part")})


def file_without_row(local: LocalCluster) -> Planted:
    """A part that the log has and the catalog lacks, although its file exists."""
    _, part = store(local, "file")
    put_back = _with_rows(local, "r3", "DELETE FROM parts WHERE part = ?", part)
    return Planted(
        {("r3", "record_without_row"), ("r3", "file_without_part"), ("r3", "parts_differ")}, [put_back]
    )


def removal_that_one_lacks(local: LocalCluster) -> Planted:
    """A removed part that one replica still shows."""
    table, part = store(local)
    with local.connect("r2") as db:
        db.truncate(table, wait="all")
    sql = "UPDATE parts SET removal_csn = NULL, removal_tid = NULL WHERE part = ?"
    put_back = _with_rows(local, "r1", sql, part)
    return Planted({("r1", "removal_missing"), ("r1", "parts_differ")}, [put_back])


def outcome_that_one_lacks(local: LocalCluster) -> Planted:
    """A commit whose outcome one replica lacks."""
    table, _ = store(local)
    data_dir = local.data_dir("r2")
    sql = "SELECT o.* FROM outcomes o JOIN parts p ON p.creation_tid = o.tid WHERE p.table_name = ?"
    (before,) = tampering.rows(data_dir, sql, table)
    with catalog(data_dir) as db:
        db.execute("DELETE FROM outcomes WHERE tid = ?", before[:1])

    def put_back() -> None:
        with catalog(data_dir) as db:
            db.execute(f"INSERT INTO outcomes VALUES ({', '.join('?' * len(before))})", before)

    return Planted({("r2", "record_without_outcome"), ("r2", "outcomes_differ")}, [put_back])


def pin_of_nobody(local: LocalCluster) -> Planted:
    """A pin whose owner is not a replica of the cluster."""
    csn = ask(local, "r1", "/status")["snapshot_csn"]
    op = Create(tree.pin("ghost-1-1"), encode_pin(PinState(Csn(csn), 3600.0, ReplicaId("ghost"))))
    return Planted({(replica, "pin_of_nobody") for replica in REPLICAS}, [_with_znodes(local, op)])


def tag_that_one_lacks(local: LocalCluster) -> Planted:
    """A tag that is in ZooKeeper and on the other replicas."""
    data_dir, sql = local.data_dir("r3"), "SELECT * FROM tags WHERE name = 'audited'"
    with local.connect("r1") as db:
        tag = db.tag("audited", move=True)
    eventually(lambda: [row[1] for row in tampering.rows(data_dir, sql)] == [tag.csn])
    (before,) = tampering.rows(data_dir, sql)
    with catalog(data_dir) as rows:
        rows.execute("DELETE FROM tags")

    def put_back() -> None:
        with catalog(data_dir) as rows:
            rows.execute("INSERT INTO tags VALUES (?, ?, ?, ?, ?)", before)

    return Planted({("r3", "tag_differs")}, [put_back])


PLANTS: dict[str, Callable[[LocalCluster], Planted]] = {
    plant.__name__: plant
    for plant in (
        surplus_file, missing_file, flipped_byte, stale_lock, dangling_label, missing_label, repeated_batch,
        row_without_file, file_without_row, removal_that_one_lacks, outcome_that_one_lacks, pin_of_nobody,
        tag_that_one_lacks,
    )
}  # fmt: skip


@contextlib.contextmanager
def planted(local: LocalCluster, *names: str) -> Iterator[Planted]:
    """Plant faults, and take them back."""
    all_ = Planted(set())
    with contextlib.ExitStack() as stack:
        for name in names:
            one = PLANTS[name](local)
            all_.found |= one.found
            all_.deep |= one.deep
            for take_back in one.take_back:
                stack.callback(take_back)
        yield all_


def test_all_planted_faults_are_found(local: LocalCluster) -> None:
    """A sound cluster has no finding; with one fault of each kind the audit names exactly these."""
    store(local)
    store(local, "file", label="of the audit")
    clean = audited(local, deep=True)
    assert clean.clean, clean
    assert set(clean.replicas) == set(REPLICAS)
    for told in clean.replicas.values():
        assert told.csn == clean.csn
        empty = {check for check, count in told.checks.items() if not count}
        assert empty <= {"pins", "undecided", "locks", "tags"}
    with planted(local, *PLANTS) as faults:
        told = command(local, Exit.FOUND, "--deep", "--json")
    found = {(replica, one["fault"]) for one in told["findings"] for replica in one["replicas"]}
    assert found == faults.found | faults.deep, told["findings"]
    assert not told["clean"]
    assert all(one["next_step"] and one["expected"] != one["found"] for one in told["findings"])


def test_what_was_mended_or_taken_back_is_no_finding(local: LocalCluster) -> None:
    """After the repair of the faults above the command finds nothing, in JSON and in text."""
    assert "nothing found on r1, r2, r3" in command(local, Exit.OK)
    assert command(local, Exit.OK, "--json")["clean"]


def command(local: LocalCluster, code: Exit, *arguments: str) -> Any:
    """Run `tidelock audit`; its output."""
    done = CliRunner().invoke(cli.app, ["audit", "--url", local.url("r1"), *arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTS)
def test_one_fault_has_its_own_findings(local: LocalCluster, fault: str) -> None:
    """One fault at a time, and the cluster is sound when it is taken back."""
    with planted(local, fault) as faults:
        report = audited(local, deep=True)
        assert named(report) == faults.found | faults.deep, report.findings
    report = audited(local)
    assert report.clean, report


def test_a_cluster_under_load_is_sound(local: LocalCluster, tmp_path: Path) -> None:
    """Audits during commits, rollbacks and refusals on all replicas find no fault."""
    with Workload(local, tmp_path, f"load{next(NAMES)}", writers=REPLICAS, hoppers=1) as load:
        for _ in range(2):
            load.more_commits(10)
            report = audited(local)
            assert report.clean, report


#: All background tasks that delete something run as often as they can.
BUSY = {
    **SETTINGS,
    "compaction": "true",
    "compaction_interval_s": 0.3,
    "compaction_parts_min": 3,
    "compaction_retry_wait_max_s": 1,
    "history_retention_s": 2,
    "unpinned_ttl_s": 1,
    "horizon_interval_s": 0.2,
    "log_keep_records": 20,
    "outcome_retention_s": 5,
    "audit_settle_s": 8,
}
PARTITIONED = pa.schema([pa.field("y", pa.int32()), pa.field("n", pa.int64())])


class Remover(threading.Thread):
    """A session that fills and empties two tables: one that it shares with the others, and its own."""

    def __init__(self, local: LocalCluster, replica: str, shared: str) -> None:
        super().__init__(name=f"remover {replica}")
        self._local, self._replica, self._shared = local, replica, shared
        self._random = random.Random(replica)
        self.stop = threading.Event()
        self.done = self.refused = 0

    def run(self) -> None:
        """Work until it is stopped."""
        own = f"own_{self._replica}_{next(NAMES)}"
        with self._local.connect(self._replica) as db:
            db.create_table(own, PARTITIONED, partition_by=["y"])
            while not self.stop.is_set():
                table = self._random.choice([own, own, self._shared])
                try:
                    self._step(db, table)
                    self.done += 1
                except TidelockError:
                    self.refused += 1

    def _step(self, db: Database, table: str) -> None:
        year = self._random.randrange(3)
        rows = pa.table({"y": [year] * 5, "n": [self._random.randrange(100) for _ in range(5)]}, PARTITIONED)
        label = f"{self.name} {next(NAMES)}" if self._random.random() < 0.3 else None
        with contextlib.suppress(GivenUpError), db.begin(label) as tx:
            tx.insert(table, rows)
            match self._random.randrange(6):
                case 0:
                    tx.drop_partition(table, {"y": (year + 1) % 3})
                case 1:
                    tx.replace_partition(table, {"y": year}, rows)
                case 2 if self._random.random() < 0.3:
                    tx.truncate(table)
                case 3:
                    tx.delete(table, "n < ?", [50])
                case 4:
                    tx.upsert(table, rows.slice(0, 1), on=["y", "n"])
            if self._random.random() < 0.2:
                raise GivenUpError
        if self._random.random() < 0.2:
            db.read(table)


class GivenUpError(Exception):
    """A client gives its transaction up."""


@pytest.mark.slow
def test_no_audit_takes_work_for_a_fault(cluster: ClusterFactory, tmp_path: Path) -> None:
    """Audits are clean during inserts, removals, conflicts, rollbacks, compaction, collection, a restart."""
    local = cluster(settings=BUSY)
    with local.connect() as db:
        db.create_table("shared", PARTITIONED, partition_by=["y"])
    removers = [Remover(local, replica, "shared") for replica in REPLICAS]
    with Workload(local, tmp_path, "load", writers=REPLICAS, hoppers=1) as load:
        for remover in removers:
            remover.start()
        try:
            for number in range(8):
                load.more_commits(5)
                if number == 4:
                    local.stop("r3")
                    local.start("r3")
                report = audited(local, deep=number % 2 == 0)
                assert report.clean, report
            eventually(lambda: all(one.done > 20 for one in removers), what="20 transactions of each remover")
        finally:
            for remover in removers:
                remover.stop.set()
            for remover in removers:
                remover.join(60)
    told = audited(local)
    assert told.clean, told
    tail = min(one.log_from for one in told.replicas.values())
    assert tail > 2, "nothing was collected"
