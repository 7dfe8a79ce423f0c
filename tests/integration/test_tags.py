"""Tags: names of CSNs that keep the history of all tables without a process, on three replicas."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pyspark_tidelock import DefaultSource
from tests.support.clusters.agreeing import all_follow
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import http
from tests.support.histories.evidence import data_address, horizons, nothing_left, require_clean_audit
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import eventually
from tests.support.zookeeper.servers import READY_TIMEOUT_S
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    NoSuchCsnError,
    SnapshotTooOldError,
    TagExistsError,
    TooLargeError,
    UnknownTagError,
)
from tidelock.wire.cluster import HorizonBound

SCHEMA: Final = pa.schema([pa.field("n", pa.int64(), nullable=False)])
REPLICAS: Final = ("r1", "r2", "r3")
NUMBERS = itertools.count(1)
#: A history so short that only a tag keeps it.
SHORT: Final = {
    **QUICK,
    "history_retention_s": 0.5,
    "horizon_interval_s": 0.2,
    "unpinned_ttl_s": 2,
    "log_keep_records": 5,
    "clean_interval_s": 0.5,
    "tags_max": 3,
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=SHORT)


@pytest.fixture
def table(db: Database) -> Iterator[str]:
    """A new table; tags are ended at the end."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, SCHEMA)
    yield name
    for tag in db.tags():
        db.untag(tag.name)


def rows(*numbers: int) -> pa.Table:
    """Return rows."""
    return pa.table({"n": numbers}, SCHEMA)


def numbers(db: Database, table: str, csn: str | int | None = None) -> list[int]:
    """Return what is in the table."""
    return sorted(db.read(table, csn=csn)["n"].to_pylist())


def goes_on(local: LocalCluster, db: Database, until: int) -> None:
    """Write until every replica has a horizon of at least this CSN."""
    other = f"t{next(NUMBERS)}"
    db.create_table(other, SCHEMA)

    def reached() -> bool:
        db.insert(other, rows(1))
        return min(horizons(local)) >= until

    eventually(reached, what=f"a horizon of {until}")


def listed(local: LocalCluster, replica: str, folder: str) -> list[str] | str:
    """Return the names in a folder of the snapshot file system, or the exception of WebHDFS."""
    url = f"http://{data_address(local, replica)}/webhdfs/v1/snapshots/{folder}?op=LISTSTATUS"
    answer = http("GET", url).json
    if "RemoteException" in answer:
        return str(answer["RemoteException"]["exception"])
    return [status["pathSuffix"] for status in answer["FileStatuses"]["FileStatus"]]


def by_path(local: LocalCluster, replica: str, folder: str) -> list[int]:
    """Read the files of a folder with another reader of Parquet, by plain HTTP."""
    names = [name for name in listed(local, replica, folder) if name.endswith(".parquet")]
    files = [
        http("GET", f"http://{data_address(local, replica)}/snapshots/{folder}/{name}").data for name in names
    ]
    return sorted(n for data in files for n in pq.read_table(io.BytesIO(data))["n"].to_pylist())


def test_a_tag_keeps_its_history_until_it_is_ended(local: LocalCluster, db: Database, table: str) -> None:
    """The rows are there on each replica by each way, while the horizon stands at the tag; then they go."""
    db.insert(table, rows(1, 2, 3))
    tag = db.tag("2026Q3")
    assert (tag.name, tag.keep_s) == ("2026Q3", None)
    assert tag.made_csn > tag.csn
    db.truncate(table)
    db.insert(table, rows(4), wait="all")
    goes_on(local, db, tag.csn)
    # Another replica may have raised the horizon: this one knows less of the time that has passed.
    tagged = HorizonBound(csn=tag.csn, kind="tag", name="2026Q3")
    eventually(lambda: db.status().holding_back == tagged, what="a horizon that the tag holds")
    for replica in REPLICAS:
        with local.connect(replica) as there:
            assert numbers(there, table, "2026Q3") == numbers(there, table, str(tag.csn)) == [1, 2, 3]
            assert there.sql(f"select max(n) as n from {table}", csn="2026Q3").to_pylist() == [{"n": 3}]
            assert there.table(table, csn="2026Q3").rows == 3
            assert there.tags() == [tag]
            assert numbers(there, table) == [4]
        assert by_path(local, replica, f"2026Q3/default/{table}") == [1, 2, 3]
        assert "2026Q3" in listed(local, replica, "")
    assert set(horizons(local)) == {tag.csn}
    db.untag("2026Q3")
    goes_on(local, db, tag.csn + 1)
    for replica in REPLICAS:
        with local.connect(replica) as there:
            with pytest.raises(UnknownTagError, match="no tag '2026Q3'"):
                numbers(there, table, "2026Q3")
            with pytest.raises(SnapshotTooOldError):
                numbers(there, table, tag.csn)
        assert listed(local, replica, f"2026Q3/default/{table}") == "AccessControlException"
    for replica in REPLICAS:
        nothing_left(local.data_dir(replica))


def test_a_tag_survives_a_restart_of_all_replicas(local: LocalCluster, table: str) -> None:
    """No process holds it: neither its client nor the replica where it was made."""
    with local.connect("r2") as db:
        db.insert(table, rows(1))
        tag = db.tag("kept")
        db.truncate(table)
    for replica in REPLICAS:
        local.kill(replica)
    for replica in REPLICAS:
        local.start(replica, timeout_s=READY_TIMEOUT_S)
    with local.connect("r3") as db:
        goes_on(local, db, tag.csn)
        assert numbers(db, table, "kept") == [1]
        assert set(horizons(local)) == {tag.csn}
        moved = db.tag("kept", move=True)
        assert moved.csn > tag.csn
        goes_on(local, db, moved.csn)
        assert numbers(db, table, "kept") == []
    require_clean_audit(local)


@pytest.mark.slow
def test_a_clone_knows_the_tags_of_its_source(local: LocalCluster, table: str) -> None:
    """A replica that comes with an empty disk serves the folder of a tag with the rows of its CSN."""
    with local.connect("r1") as db:
        db.insert(table, rows(7, 8))
        db.tag("early")
        db.truncate(table, wait="all")
    local.kill("r3")
    shutil.rmtree(local.data_dir("r3"))
    local.up(timeout_s=READY_TIMEOUT_S, replace_disks=["r3"])
    with local.connect("r3") as db:
        eventually(lambda: numbers(db, table, "early") == [7, 8], what="rows of the tag at the clone")
    assert by_path(local, "r3", f"early/default/{table}") == [7, 8]


def test_a_name_is_taken_once_and_moved_on_request(db: Database, table: str) -> None:
    """The same call again is harmless; another CSN under the name needs `move`."""
    first = db.tag("held", db.insert(table, rows(1)).csn).csn
    tag = db.tag("a", first)
    assert db.tag("a", first) == tag
    second = db.insert(table, rows(2)).csn
    assert second is not None
    with pytest.raises(TagExistsError, match=f"tag a names CSN {first} already.*move") as caught:
        db.tag("a", second)
    assert caught.value.details["csn"] == first
    assert db.tag("b", "a").csn == first
    assert db.tag("a", second, move=True).csn == second
    assert [(one.name, one.csn) for one in db.tags()] == [("a", second), ("b", first), ("held", first)]
    with pytest.raises(TagExistsError, match="names CSN"):
        db.tag("a", second, keep="1h")


@pytest.mark.parametrize("name", ["", "2026", "../x", "-a", "a/b", "a b", "é", "x" * 65])
def test_a_wrong_name_is_refused_with_the_rule(db: Database, name: str) -> None:
    """A name is a folder below /snapshots, beside numbers, which are CSNs."""
    with pytest.raises(BadRequestError, match="is no name of a tag: expected up to 64 of a-z"):
        db.tag(name)


def test_what_cannot_be_kept_is_not_tagged(local: LocalCluster, db: Database, table: str) -> None:
    """A CSN whose history is gone, one that does not exist, a tag too many, and a tag that is no tag."""
    old = db.insert(table, rows(1)).csn
    assert old is not None
    goes_on(local, db, old + 1)
    with pytest.raises(SnapshotTooOldError, match="below the horizon"):
        db.tag("old", old)
    with pytest.raises(NoSuchCsnError):
        db.tag("future", 1 << 40)
    with pytest.raises(BadRequestError, match="csn or at, not both"):
        db.tag("both", 5, at="2026-01-01T00:00:00Z")
    with pytest.raises(BadRequestError, match="not above 0"):
        db.tag("short", keep=0)
    for name in ("a", "b", "c"):
        db.tag(name)
    with pytest.raises(TooLargeError, match="as many as tags_max=3 allows"):
        db.tag("d")
    db.tag("c", move=True)
    with pytest.raises(UnknownTagError, match="no tag 'd'; the tags are a, b, c"):
        db.untag("d")
    with pytest.raises(UnknownTagError, match="no tag 'd'"):
        db.tag("e", "d")


def tagged(begin: threading.Barrier, name: str, db: Database, csn: int | None) -> int | TagExistsError:
    """Tag a CSN together with another client; return the CSN of the tag, or the refusal."""
    begin.wait()
    try:
        return db.tag(name, csn).csn
    except TagExistsError as error:
        return error


def test_of_two_that_tag_at_once_one_gets_the_name(local: LocalCluster, table: str) -> None:
    """Clients at two replicas give one name to different CSNs: one of them hears that it is taken."""
    with local.connect("r1") as one, local.connect("r2") as two, one.snapshot():  # it holds the history
        csns = [one.insert(table, rows(number)).csn for number in (1, 2)]
        for turn in range(3):
            with ThreadPoolExecutor(2) as threads:
                begin = threading.Barrier(2, timeout=60)
                told = [*threads.map(partial(tagged, begin, f"race{turn}"), (one, two), csns)]
            failed = [answer for answer in told if isinstance(answer, TagExistsError)]
            made = [answer for answer in told if isinstance(answer, int)]
            assert (len(made), len(failed)) == (1, 1)
            assert failed[0].details["csn"] == made[0]
            one.untag(f"race{turn}")


def test_a_tag_for_a_time_ends_by_itself(local: LocalCluster, db: Database, table: str) -> None:
    """It holds its history so long, and no replica knows it after that."""
    db.insert(table, rows(1))
    csn = db.tag("brief", keep=1.5).csn
    assert numbers(db, table, "brief") == [1]

    def ended() -> bool:
        db.insert(table, rows(2))
        return not db.tags()

    eventually(ended, what="the end of the tag")
    goes_on(local, db, csn + 1)


def test_tags_on_the_command_line(local: LocalCluster, db: Database, table: str) -> None:
    """A tag is made, listed, read and ended; the log and the history of commits go on to be shown."""
    db.insert(table, rows(1, 2), wait="all")

    def run(*args: str) -> str:
        done = CliRunner().invoke(cli.app, [*args, "--url", local.url("r1")])
        assert done.exit_code == 0, done.output
        return done.output

    with local.connect() as all_replicas:  # the log keeps five records here, and the tag is to be one of them
        all_replicas.set_switch("collection", "off")
        made = json.loads(run("tag", "q1", "--json"))
        assert '"TagCsn"' in run("log", "--json")
        all_replicas.set_switch("collection", "on")
    db.insert(table, rows(3))
    all_follow(local)
    assert json.loads(run("tags", "--json")) == [dict(one) for one in db.tags()]
    assert f"{made['csn']}" in run("tags")
    assert json.loads(run("sql", f"select count(*) as n from {table}", "--csn", "q1", "--json")) == [{"n": 2}]
    assert json.loads(run("snapshot", "show", "q1", "--json"))["csn"] == made["csn"]
    assert table in run("history")
    assert "has ended" in run("untag", "q1")
    assert db.tags() == []


@pytest.mark.slow
def test_the_history_of_changes_outlives_the_log(local: LocalCluster, db: Database, table: str) -> None:
    """It says the same when the records are gone, after a restart, and at a replica that has cloned."""
    with db.begin(label=f"load {table}", meta={"by": "ann"}) as tx:
        tx.insert(table, rows(1, 2))
    csn = tx.csn
    assert csn is not None
    db.delete(table, "n = 1")
    goes_on(local, db, csn + 1)
    eventually(lambda: int(db.status()["tail"]) > csn, what="a log that begins behind the load")
    local.kill("r3")
    shutil.rmtree(local.data_dir("r3"))
    for replica in ("r1", "r2"):
        local.kill(replica)
    local.up(timeout_s=READY_TIMEOUT_S, replace_disks=["r3"])
    for replica in REPLICAS:
        run = partial(CliRunner().invoke, cli.app)
        done = run(["history", table, "--url", local.url(replica), "--json"])
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert [(one["action"], one["rows_added"], one["rows_removed"]) for one in found] == [
            ("create", 0, 0),
            ("insert", 2, 0),
            ("change", 1, 2),
        ]
        assert (found[1]["csn"], found[1]["label"]) == (csn, f"load {table}")
        assert json.loads(found[1]["meta"]) == {"by": "ann"}
        shown = run(["history", "--from", str(csn), "--limit", "1", "--url", local.url(replica)])
        assert f"load {table}" in shown.stdout


def by_source(options: dict[str, str]) -> list[int]:
    """Return the numbers that the tasks of Spark's data source read, here in this process."""
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    found: list[int] = []
    for piece in reader.partitions():
        for batch in reader.read(piece):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.column("n").to_pylist()
    return sorted(found)


@pytest.mark.slow
def test_the_data_source_of_spark_takes_a_tag(local: LocalCluster, db: Database, table: str) -> None:
    """After changes of rows and columns, and collection; a tag that does not exist is named by the error."""
    db.insert(table, rows(1, 2, 3))
    tag = db.tag("2026Q3")
    db.truncate(table)
    db.alter_table(table, add="late string default 'x'")
    db.insert(table, rows(4), wait="all")
    goes_on(local, db, tag.csn)
    tagged = {"table": table, "csnAsOf": "2026Q3", "leaseSeconds": "2"}
    for replica in REPLICAS:
        options = {**tagged, "url": local.url(replica), "replica": replica}
        assert DefaultSource(options).schema().fieldNames() == ["n"]
        assert by_source(options) == by_source({**options, "csnAsOf": str(tag.csn)}) == [1, 2, 3]
        assert by_source({**options, "where": "n > 1"}) == [2, 3]
        with pytest.raises(UnknownTagError, match="no tag '2026Q4'; the tags are 2026Q3"):
            by_source({**options, "csnAsOf": "2026Q4"})
    source = DefaultSource({**tagged, "url": local.url("r1")})
    reader = source.reader(source.schema())
    db.untag("2026Q3")
    goes_on(local, db, tag.csn + 1)
    with pytest.raises(SnapshotTooOldError):
        [*reader.read(reader.partitions()[0])]


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_at_a_tag_by_its_name(
    local: LocalCluster, db: Database, table: str, tmp_path: Path
) -> None:
    """By the data source and by an attached snapshot, whose error tells which tags there are."""
    db.insert(table, rows(1, 2, 3))
    tag = db.tag("2026Q3")
    db.truncate(table)
    db.insert(table, rows(4), wait="all")
    goes_on(local, db, tag.csn)
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        options = {"table": table, "url": local.url("r2"), "leaseSeconds": "60"}
        spark.call("load", view="tagged", options={**options, "csnAsOf": "2026Q3"})
        spark.call("load", view="now", options=options)
        assert spark.sql("select sum(n) from tagged union all select sum(n) from now") == [[6], [4]]
        with pytest.raises(SparkJobError, match="no tag '2026Q4'; the tags are 2026Q3"):
            spark.call("load", view="unknown", options={**options, "csnAsOf": "2026Q4"})
        spark.call("join", url=local.url("r3"))
        assert spark.call("attach", csn="2026Q3", tables=[table])["csn"] == tag.csn
        assert spark.sql(f"select sum(n) from {table}") == [[6]]
        with pytest.raises(SparkJobError, match="no tag '2026Q4'; the tags are 2026Q3"):
            spark.call("attach", csn="2026Q4", tables=[table])


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_the_folder_of_a_tag(
    local: LocalCluster, db: Database, table: str, tmp_path: Path
) -> None:
    """Spark's own Parquet reader takes the path of a tag as it is, after the rows have left the table."""
    db.insert(table, rows(1, 2, 3))
    db.tag("2026Q3")
    db.truncate(table, wait="all")
    with SparkProcess("classic", tmp_path) as spark:
        folder = f"webhdfs://{data_address(local, 'r2')}/snapshots/2026Q3/default/{table}"
        assert spark.sql(f"select count(*), sum(n) from parquet.`{folder}`") == [[3, 6]]
