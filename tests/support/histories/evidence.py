"""Evidence after a load, when all faults are healed: it is added to the history and judged.

The log is read from ZooKeeper itself, not through an agent; rows, lists, bytes and outcomes are asked of
every replica. What the cluster must come to by itself (all replicas at the end of the log, every tid decided,
nothing left over in a data directory) is waited for, with a bound (I13, I14).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.support.histories.workload import Workload, balances, lists, wrong_extremes
from tests.support.waiting import eventually
from tidelock.cluster import LocalCluster
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.model import AddPart, DefineTable, LogRecord, RecordKind, RemovePart
from tidelock.csnlog.reading import read_page
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import StandbyError, TidelockError
from tidelock.replication.core.digest import checksum
from workloads.agents import Agents, ListedPart, ask
from workloads.checker import check
from workloads.history import CallEnd, CallHistory, Recorder, load

#: CSNs besides the last one at which all replicas are compared.
SAMPLED_CSNS: Final = 4
#: Parts of each table that are downloaded from each replica.
SAMPLED_PARTS: Final = 100
#: Decided transactions whose outcome every replica is asked for; those of unknown outcome are all asked for.
SAMPLED_TIDS: Final = 20
_PAGE: Final = 1000
_DOWNLOAD_THREADS: Final = 4
_CHECKER: Final = "the end"


def verify(workload: Workload, *, commits: int, log: str | None = None) -> CallHistory:
    """Gather the evidence and judge the history; returns it.

    Args:
        workload: It has ended; all replicas run.
        commits: At least so many commits must have been acknowledged, else nothing was tested.
        log: Where the log is read, if not at the cluster's ZooKeeper.
    """
    cluster = workload.cluster
    with Recorder(workload.recorder.path) as recorder:
        records = read_log(log or cluster.zk)
        _note_log(recorder, records, workload.tables)
        end = records[-1].csn
        for replica in cluster.replicas:
            eventually(partial(reached, cluster, replica, end), what=f"{replica} at CSN {end}")
        _outcomes(workload, recorder)
        chosen = random.Random(end)
        created = _created(records, workload.tables)
        csns = [record.csn for record in records if record.csn >= created]
        for csn in sorted({*chosen.sample(csns, min(SAMPLED_CSNS, len(csns))), end}):
            for replica in cluster.replicas:
                _read(workload, recorder, replica, csn)
        for replica in cluster.replicas:
            _download(workload, recorder, replica, end)
    history = load(workload.recorder.path)
    violations = check(history)
    assert not violations, f"{workload.recorder.path}: {violations}"
    assert len(history.ended(CallEnd.OK)) >= commits, "too few commits to say anything"
    for replica in cluster.replicas:
        nothing_left(cluster.data_dir(replica))
    require_clean_audit(cluster)
    return history


def lives(history: CallHistory) -> set[tuple[str, str]]:
    """Home and boot of every transaction that was acknowledged."""
    return {
        (home, boot)
        for _, home, boot, _ in (str(write.tid).split("-") for write in history.ended(CallEnd.OK))
    }


def read_log(connect: str) -> list[LogRecord]:
    """Read all records of a cluster's log."""

    async def read() -> list[LogRecord]:
        store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
        await store.open()
        found: list[LogRecord] = []
        try:
            while page := await read_page(store, found[-1].csn if found else Csn(0), _PAGE, read_ahead=64):
                found += page
        finally:
            await store.close()
        return found

    return asyncio.run(read())


def require_clean_audit(cluster: LocalCluster, *, deep: bool = False) -> None:
    """Require that the product's own audit of all replicas, which run, finds nothing (I10, I13).

    Args:
        cluster: All its replicas serve.
        deep: Read all bytes too.
    """
    with cluster.connect() as db:
        report = db.audit(deep=deep)
    assert report.clean, report


def nothing_left(data_dir: Path) -> None:
    """Wait until a replica holds what the log needs, and nothing else; AssertionError tells what it is."""
    left: list[str] = []

    def nothing() -> bool:
        left[:] = leftovers(data_dir)
        return not left

    with contextlib.suppress(AssertionError):
        eventually(nothing)
    assert not left, f"{data_dir}: {left}"


def leftovers(data_dir: Path) -> list[str]:
    """Return what a replica holds although no commit needs it, and what it lacks (I13)."""
    db = sqlite3.connect(f"file:{data_dir / 'catalog.db'}?mode=ro", uri=True)
    try:
        named = dict(db.execute("SELECT path, bytes FROM files"))
        ends = dict(
            db.execute("SELECT file, max(offset + length) FROM parts WHERE state = 'held' GROUP BY file")
        )
        packs = dict(db.execute("SELECT path, 0 FROM packs"))  # without parts: empty, or not there
        found = [f"prepared {tid}" for (tid,) in db.execute("SELECT tid FROM prepared")]
        found += [
            f"part {part} of {tid} is {'undecided' if csn is None else state}"
            for part, tid, csn, state in db.execute(
                "SELECT part, creation_tid, creation_csn, state FROM parts "
                "WHERE creation_csn IS NULL OR state <> 'held'"
            )
        ]
        found += [
            f"part {part} is marked as removed by {tid}"
            for part, tid in db.execute(
                "SELECT part, removal_tid FROM parts WHERE removal_tid IS NOT NULL AND removal_csn IS NULL"
            )
        ]
        found += [
            f"file {path} of which no part is needed"
            for (path,) in db.execute(
                "SELECT path FROM files WHERE NOT EXISTS (SELECT 1 FROM parts WHERE parts.file = files.path)"
            )
        ]
    finally:
        db.close()
    there: dict[str, int] = {}
    for top in ("parts", "packs", "tmp"):
        for path in data_dir.joinpath(top).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # an agent that runs has just deleted it
                if path.is_file():
                    there[str(path.relative_to(data_dir))] = path.stat().st_size
    found += [f"file {path} is missing" for path in named.keys() - there.keys()]
    named |= packs
    found += [f"file {path} that no row names" for path in there.keys() - named.keys()]
    found += [
        f"file {path} has {there[path]} bytes, not {named[path]}"
        for path in named.keys() & there.keys()
        # A pack that was cut has all that is read from it, once the parts of its end lie elsewhere.
        if there[path] > named[path] or there[path] < ends.get(path, named[path])
    ]
    return found


def reached(cluster: LocalCluster, replica: str, csn: int) -> bool:
    """Whether a replica serves and has applied a CSN."""
    try:
        status = ask(cluster, replica, "/status")
    except TidelockError:
        return False
    return status["state"] == "serving" and int(status["snapshot_csn"]) >= csn


def _created(records: Iterable[LogRecord], tables: Sequence[str]) -> int:
    """The CSN from which on both tables exist."""
    return max(
        record.csn
        for record in records
        for tid in record.record.tids
        for entry in tid.entries
        if isinstance(entry, DefineTable) and entry.table in tables
    )


def _note_log(recorder: Recorder, records: Iterable[LogRecord], tables: Sequence[str]) -> None:
    lines = []
    for item in records:
        tids = []
        for tid in item.record.tids:
            assert tid.manifest is None, "this load makes no transaction that needs one"
            added = [entry for entry in tid.entries if isinstance(entry, AddPart) and entry.table in tables]
            facts = [
                (entry.table, entry.part, entry.path, entry.rows, entry.length, entry.checksum)
                for entry in added
            ]
            removed = [
                entry.part for entry in tid.entries if isinstance(entry, RemovePart) and entry.table in tables
            ]
            tids.append((tid.tid, facts, removed, not tid.data_change, tid.carrier))
        lines.append((item.csn, item.record.kind is RecordKind.END, tids))
    recorder.note(CallEnd.OK, "log", _CHECKER, records=lines)


def _outcomes(workload: Workload, recorder: Recorder) -> None:
    """Ask every replica for all unknown outcomes, until they are decided, and for some of the known ones."""
    history = load(workload.recorder.path)
    chosen = random.Random(len(history.writes))
    asked = [write.tid for write in history.ended(CallEnd.INFO)]
    for end in (CallEnd.OK, CallEnd.FAIL):
        known = [write.tid for write in history.ended(end)]
        asked += chosen.sample(known, min(SAMPLED_TIDS, len(known)))
    for tid in asked:
        for replica in workload.cluster.replicas if tid is not None else ():
            answer = eventually(
                partial(_decided, workload.cluster, replica, tid or ""),
                what=f"{replica}'s answer to outcome({tid})",
            )
            recorder.note(
                CallEnd.OK,
                "outcome",
                _CHECKER,
                replica=replica,
                tid=tid,
                outcome=answer["outcome"],
                csn=answer.get("csn"),
            )


def _decided(cluster: LocalCluster, replica: str, tid: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(cluster, replica, f"/outcomes/{tid}")
    except TidelockError:
        return {}
    return answer if answer["outcome"] != "running" else {}


def _read(workload: Workload, recorder: Recorder, replica: str, csn: int) -> None:
    """Read a CSN at one replica. A clone fetches what only older CSNs need after it has begun to serve."""
    process = f"{_CHECKER}, {replica}"

    def found() -> list[tuple[list[list[Any]], list[str]]]:
        with (
            contextlib.suppress(StandbyError),
            workload.cluster.connect(replica) as db,
            db.snapshot(csn) as snap,
        ):
            return [(balances(snap, workload.tables), wrong_extremes(snap, workload.tables))]
        return []

    [(rows, wrong)] = eventually(found, what=f"all parts of CSN {csn} at {replica}")
    assert wrong == []
    recorder.note(CallEnd.OK, "read", process, replica=replica, csn=csn, exact=True, rows=rows)

    def note(kind: CallEnd | str, f: str, **fields: Any) -> None:
        recorder.note(kind, f, process, **fields)

    lists(workload, replica, csn, note)


def _download(workload: Workload, recorder: Recorder, replica: str, csn: int) -> None:
    """Get listed parts by plain HTTP and note the checksums of their bytes."""
    agents = Agents(workload.cluster)
    chosen = random.Random(csn)
    for table in workload.tables:
        parts = agents.parts(replica, csn, table)
        parts = chosen.sample(parts, min(SAMPLED_PARTS, len(parts)))
        with ThreadPoolExecutor(_DOWNLOAD_THREADS) as threads:
            answers = threads.map(lambda part: _checksum(agents, replica, csn, part), parts)
            for part, answer in zip(parts, answers, strict=True):
                recorder.note(
                    CallEnd.OK,
                    "bytes",
                    _CHECKER,
                    replica=replica,
                    csn=csn,
                    part=part.id,
                    listed=part.checksum,
                    found=answer,
                )


def _checksum(agents: Agents, replica: str, csn: int, part: ListedPart) -> str:
    """The checksum of a part's bytes as they are served, or why there are none."""
    try:
        return checksum(agents.read(replica, csn, part))
    except TidelockError as error:
        return repr(error)


def alive(cluster: LocalCluster, asked: str, replica: str) -> bool:
    """Whether a replica has a sign of life, as another sees it."""
    rows = ask(cluster, asked, "/status")["replicas"]
    return any(row["alive"] for row in rows if row["id"] == replica)


def horizons(cluster: LocalCluster) -> list[int]:
    """Return the horizon that each replica has noted: below its own it serves nothing."""
    found = []
    for replica in cluster.replicas:
        with cluster.connect(replica) as db:  # which shows the secret, where there is one
            found.append(int(db.status()["horizon"]))
    return found


def api_address(cluster: LocalCluster, replica: str) -> str:
    """Return host:port of a replica's API, as it is published."""
    with cluster.connect(replica) as db:
        (address,) = (row["api"] for row in db.status()["replicas"] if row["id"] == replica)
    return str(address)


def data_address(cluster: LocalCluster, replica: str) -> str:
    """Return host:port of a replica's snapshot file system."""
    (address,) = (row["data"] for row in cluster.status()["replicas"] if row["id"] == replica)
    return str(address)
