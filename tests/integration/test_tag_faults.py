"""Tags while replicas die: each change is on every replica as a whole, or on none, and counts once."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.clusters.agreeing import agreeing, all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates, points
from tests.support.faults.refusals import http
from tests.support.histories.evidence import data_address, horizons
from tests.support.waiting import eventually
from tidelock.client import Database, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import CommitUnknownError, SnapshotTooOldError, UnknownTagError
from workloads.agents import ask

HOME, PEER = "r1", "r2"
TABLE: Final = "t"
#: Steps of the commit of a tag at its home, and at a peer.
STEPS: Final = ("csnlog.commit", "replication.apply")
PEER_STEPS: Final = ("replication.apply", "agent.catalog")
IN_THE_LOG: Final = {"csnlog.commit.after", *points(["replication.apply"])}
#: History is so short that only a tag, or an open snapshot, keeps it.
SETTINGS: Final = {
    **QUICK,
    "clean_interval_s": 0.5,
    "compaction": False,
    "history_retention_s": 0.5,
    "horizon_interval_s": 0.2,
    "unpinned_ttl_s": 2,
}
NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """The points at which the home and a peer can die."""
    armed = {HOME: STEPS, PEER: PEER_STEPS}
    faults = {replica: dict.fromkeys(points(steps), "crash") for replica, steps in armed.items()}
    return Gates(tmp_path_factory.mktemp("gates"), faults)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory, gates: Gates) -> Iterator[LocalCluster]:
    """Three replicas, which agree at the end, with nothing left over."""
    armed = {replica: gates.environment(replica) for replica in (HOME, PEER)}
    made = module_cluster(replicas=3, settings=SETTINGS, environment_of=armed)
    with made.connect() as db:
        db.create_table(TABLE, "n bigint not null")
    yield from agreeing(made)


@pytest.fixture
def other(local: LocalCluster) -> Iterator[Database]:
    """A client of a replica that nobody kills; no tag and no row is left."""
    with local.connect("r3") as db:
        yield db
        for tag in db.tags():
            db.untag(tag.name)
        db.truncate(TABLE)


def csns(db: Database) -> tuple[int, int]:
    """Return a CSN at which the table has the rows 1, 2 and 3, and a later one with row 4 alone."""
    first = db.insert(TABLE, pa.table({"n": [1, 2, 3]})).csn
    db.truncate(TABLE)
    second = db.insert(TABLE, pa.table({"n": [4]})).csn
    assert first is not None
    assert second is not None
    return first, second


def passes(local: LocalCluster, db: Database, csn: int) -> None:
    """Write until every replica has a horizon of at least a CSN."""

    def reached() -> bool:
        db.insert(TABLE, pa.table({"n": [5]}))
        return min(horizons(local)) >= csn

    eventually(reached, what=f"a horizon of {csn}")


def by_path(local: LocalCluster, replica: str, tag: str) -> list[int] | str:
    """Return the rows of the table in the folder of a tag by plain HTTP, or the exception of WebHDFS."""
    address = data_address(local, replica)
    folder = f"{tag}/default/{TABLE}"
    answer = http("GET", f"http://{address}/webhdfs/v1/snapshots/{folder}?op=LISTSTATUS").json
    if "RemoteException" in answer:
        return str(answer["RemoteException"]["exception"])
    names = [status["pathSuffix"] for status in answer["FileStatuses"]["FileStatus"]]
    files = [http("GET", f"http://{address}/snapshots/{folder}/{name}").data for name in names]
    tables = [pq.read_table(io.BytesIO(data)) for data in files if data]
    return sorted(n for table in tables for n in table["n"].to_pylist())


def require_held(local: LocalCluster, db: Database, name: str, csn: int, rows: list[int]) -> None:
    """Every replica knows a tag at a CSN, serves its folder, and keeps the history from it on."""
    all_follow(local)
    passes(local, db, csn)
    for replica in local.replicas:
        with local.connect(replica) as there:
            assert [(tag.name, tag.csn) for tag in there.tags()] == [(name, csn)], replica
            assert sorted(there.read(TABLE, csn=name)["n"].to_pylist()) == rows
        assert by_path(local, replica, name) == rows
    assert set(horizons(local)) == {csn}


def require_no_tag(local: LocalCluster, db: Database, name: str, csn: int) -> None:
    """No replica knows a tag or serves its folder, and nothing keeps the history of its CSN."""
    all_follow(local)
    passes(local, db, csn + 1)
    for replica in local.replicas:
        with local.connect(replica) as there:
            assert there.tags() == [], replica
            with pytest.raises(UnknownTagError):
                there.read(TABLE, csn=name)
            with pytest.raises(SnapshotTooOldError):
                there.read(TABLE, csn=csn)
        assert by_path(local, replica, name) == "AccessControlException"


#: A change of a tag: a call that makes it, moves it from one CSN to another, or ends it.
CHANGES: Final[dict[str, Callable[[Database, str, int], object]]] = {
    "make": lambda db, name, csn: db.tag(name, csn),
    "move": lambda db, name, csn: db.tag(name, csn, move=True),
    "end": lambda db, name, _: db.untag(name),
}
#: Points that run with every change.
FAST: Final = {
    ("make", "csnlog.commit.before"),
    ("make", "csnlog.commit.after"),
    ("end", "csnlog.commit.after"),
}
PEER_FAST: Final = {("make", "replication.apply.before")}


def killed(steps: Sequence[str], fast: set[tuple[str, str]]) -> list[Any]:
    """Return a parameter for each change and each point."""
    return [
        pytest.param(change, point, marks=[] if (change, point) in fast else [pytest.mark.slow])
        for change in CHANGES
        for point in points(steps)
    ]


def require_end(local: LocalCluster, db: Database, name: str, change: str, between: tuple[int, int]) -> None:
    """Look for what a change of a tag leaves, if it was committed."""
    first, second = between
    match change:
        case "make":
            require_held(local, db, name, first, [1, 2, 3])
        case "move":
            require_held(local, db, name, second, [4])
        case _:
            require_no_tag(local, db, name, first)


@pytest.mark.scenario("S05")
@pytest.mark.parametrize(("change", "point"), killed(STEPS, FAST))
@pytest.mark.few(1)
def test_a_home_that_dies_in_a_tag_leaves_it_everywhere_or_nowhere(
    local: LocalCluster, other: Database, gates: Gates, change: str, point: str
) -> None:
    """The record in the log alone decides; the caller hears that it is not known, and asks again."""
    name = f"q{next(NUMBERS)}"
    with other.snapshot():  # it keeps the history of both CSNs until the change is decided
        first, second = csns(other)
        if change != "make":
            other.tag(name, first)
        with local.connect(HOME) as db, ThreadPoolExecutor(1) as threads:
            with gates.open(HOME, point):
                told = threads.submit(CHANGES[change], db, name, second if change == "move" else first)
                eventually(lambda: local.pid(HOME) is None, what="the death of the home")
            with pytest.raises(CommitUnknownError, match=f"not known whether tag {name}"):
                told.result()
            local.start(HOME)
            all_follow(local)
            made = {tag.name: tag.csn for tag in other.tags()}
            before = {} if change == "make" else {name: first}
            after = {"make": {name: first}, "move": {name: second}, "end": {}}[change]
            assert made == (after if point in IN_THE_LOG else before)
            if point not in IN_THE_LOG:
                CHANGES[change](db, name, second if change == "move" else first)
    require_end(local, other, name, change, (first, second))
    assert len(log_of(local, name)) == (1 if change == "make" else 2)


def log_of(local: LocalCluster, name: str) -> list[int]:
    """Return the CSN of every record that changes a tag, once for each change."""
    return [
        record["csn"]
        for record in ask(local, "r3", "/log?from_csn=0")
        for transaction in record["tids"]
        for entry in transaction["entries"]
        if entry["action"] in {"TagCsn", "EndTag"} and entry["name"] == name
    ]


@pytest.mark.scenario("S38")
@pytest.mark.parametrize(("change", "point"), killed(PEER_STEPS, PEER_FAST))
def test_a_peer_that_dies_in_a_tag_knows_it_when_it_is_back(
    local: LocalCluster, other: Database, gates: Gates, change: str, point: str
) -> None:
    """The call is answered without the peer, and no replica forgets the history meanwhile."""
    name = f"q{next(NUMBERS)}"
    with other.snapshot():
        first, second = csns(other)
        if change != "make":
            other.tag(name, first)
        all_follow(local)
        with local.connect(HOME) as db:
            with gates.open(PEER, point):
                CHANGES[change](db, name, second if change == "move" else first)
                eventually(lambda: local.pid(PEER) is None, what="the death of the peer")
            expected = {"make": {name: first}, "move": {name: second}, "end": {}}[change]
            assert {tag.name: tag.csn for tag in db.tags()} == expected
        local.start(PEER)
    require_end(local, other, name, change, (first, second))


@pytest.mark.parametrize("change", ["newest", *CHANGES])
@pytest.mark.few(2)
def test_a_tag_whose_answer_is_lost_is_made_and_ended_once(
    local: LocalCluster, other: Database, gates: Gates, change: str
) -> None:
    """The home dies with the record in the log; the client repeats the call at another replica.

    It gets the answer of the first call, although the newest CSN is another one by now.
    """
    name = f"q{next(NUMBERS)}"
    with other.snapshot():
        first, second = csns(other)
        if change in {"move", "end"}:
            other.tag(name, first)
        all_follow(local)
        with connect(local.url(HOME)) as db:
            with gates.open(HOME, "csnlog.commit.after"):
                if change == "newest":
                    made = db.tag(name)
                    assert made.csn >= second
                    assert made == other.tag(name, made.csn)
                else:
                    CHANGES[change](db, name, second if change == "move" else first)
            with pytest.raises(UnknownTagError):
                db.untag("never")
        local.start(HOME)
        all_follow(local)
        assert len(log_of(local, name)) == (1 if change in {"newest", "make"} else 2)
        assert [tag.name for tag in other.tags()] == ([] if change == "end" else [name])
