"""Snapshots of the client: one CSN for all reads, on any replica, and never fewer rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database, connect
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    NoSuchCsnError,
    SnapshotClosedError,
    StandbyError,
    UnavailableError,
    UnknownTableError,
)

#: Two batches, so that an answer can be cut between them.
ROWS = pa.Table.from_batches([pa.record_batch({"k": [1, 2]}), pa.record_batch({"k": [3]})])


@pytest.fixture(autouse=True)
def rows(fake_cluster: FakeCluster) -> None:
    """A table `u` with three rows in two batches."""
    fake_cluster.add_table("u", ROWS)


def query_faults(cluster: FakeCluster, fault: Fault, count: int) -> None:
    """Let each agent answer its next queries with these faults."""
    for agent in cluster.agents.values():
        agent.plan("POST /query", *[fault] * count)


def test_snapshot_does_not_move(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A snapshot shows the same rows before and after a commit; a new one shows more."""
    with fake_db.snapshot() as snap:
        before = snap.read("u")
        result = fake_db.insert("u", ROWS)
        assert snap.read("u") == before
        assert [table["name"] for table in snap.tables()] == ["default.t", "default.u"]
    with fake_db.snapshot() as later:
        assert later.csn == result.csn
        assert later.scan("u").count() == 6


def test_sql_with_parameters_returns_an_arrow_table(fake_db: Database) -> None:
    """SQL over several tables takes parameters and returns an Arrow table."""
    with fake_db.snapshot() as snap:
        rows = snap.sql("select sum(k) as total from u where k > ?", [1])
    assert rows.to_pydict() == {"total": [5]}


def test_a_scan_can_be_read_in_every_form_again(fake_db: Database) -> None:
    """A scan returns batches, a table, a DataFrame or a count; each call reads again."""
    with fake_db.snapshot() as snap:
        scan = snap.scan("u", columns=["k"], where="k <> ?", params=[2])
        assert sum(batch.num_rows for batch in scan.to_batches()) == 2
        assert scan.to_table().column("k").to_pylist() == [1, 3]
        assert list(scan.to_pandas()["k"]) == [1, 3]
        assert scan.count() == 2


def test_parameters_that_json_cannot_carry(fake_db: Database) -> None:
    """A parameter of another type is refused with the way to pass it."""
    with fake_db.snapshot() as snap, pytest.raises(BadRequestError, match="cast"):
        snap.sql("select ?", [datetime.now(UTC)])
    with fake_db.snapshot() as snap, pytest.raises(BadRequestError, match="finite"):
        snap.sql("select ?", [float("nan")])


@pytest.mark.parametrize(("fault", "error"), [(Fault.CUT, UnavailableError), (Fault.SHORT, CorruptError)])
def test_cut_stream_is_an_error(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault, error: type[Exception]
) -> None:
    """An answer that stops in the middle raises after its rows, so it is not taken for the whole."""
    with fake_db.snapshot() as snap:
        stream = snap.scan("u").to_batches()
        stream.close()
        fake_cluster["r1"].plan("POST /query", fault)
        batches = snap.scan("u").to_batches()
        assert next(batches).num_rows == 2
        with pytest.raises(error):
            next(batches)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_whole_answers_are_asked_for_again(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault
) -> None:
    """A read that collects its whole answer goes to the next replica when the answer is cut."""
    with fake_db.snapshot() as snap:
        fake_cluster["r1"].plan("POST /query", fault)
        fake_cluster["r2"].plan("POST /query", fault)
        assert snap.read("u").num_rows == 3
        assert fake_cluster["r3"].count("POST /query") == 1


def test_a_read_fails_when_all_answers_are_cut(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """When every replica's answer is cut the read fails."""
    with fake_db.snapshot() as snap:
        query_faults(fake_cluster, Fault.CUT, 10)
        with pytest.raises(UnavailableError, match="no replica could answer"):
            snap.read("u")


def test_pinned_client_does_not_read_elsewhere(fake_cluster: FakeCluster) -> None:
    """A client that is pinned to a replica gets an error when this replica cannot serve it."""
    with connect(fake_cluster["r1"].url, replica="r1") as db, db.snapshot() as snap:
        fake_cluster["r1"].plan("POST /query", Fault.CUT)
        with pytest.raises(UnavailableError, match="truncated"):
            snap.read("u")
        assert fake_cluster["r2"].count("POST /query") == 0


def test_connections_are_kept_after_whole_streams(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A stream that was read to its end leaves its connection to the next request."""
    with fake_db.snapshot() as snap:
        for _ in range(5):
            list(snap.scan("u").to_batches())
    pool = fake_db._connection.transport._pool.connection_from_url(fake_cluster["r1"].url)
    assert pool.num_connections == 1


def test_explicit_csn_may_lie_in_the_past(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """An explicit CSN or time is used unchanged, although the client has seen newer ones."""
    old = fake_cluster.csn
    fake_db.insert("u", ROWS)
    with fake_db.snapshot(csn=old) as snap:
        assert (snap.csn, snap.scan("u").count()) == (old, 3)
    assert "min_csn" not in fake_cluster["r1"].requests[-3].json
    with fake_db.snapshot(at=datetime(2026, 1, 1, tzinfo=UTC)):
        body = next(r.json for r in reversed(fake_cluster["r1"].requests) if r.path == "/snapshots")
        assert body == {"at_ms": 1_767_225_600_000}
    with pytest.raises(BadRequestError, match="time zone"):
        fake_db.snapshot(at=datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused


def test_errors_of_the_agent_keep_their_class(fake_db: Database) -> None:
    """An unknown CSN, table or column is raised as what it is, with its details."""
    with pytest.raises(NoSuchCsnError) as caught:
        fake_db.snapshot(csn=10_000)
    assert caught.value.details["end_csn"] == fake_db.snapshot().csn
    with fake_db.snapshot() as snap:
        with pytest.raises(UnknownTableError):
            snap.read("nowhere")
        with pytest.raises(BadRequestError):
            snap.sql("select nothing")


def test_replica_that_is_behind_hands_over(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A snapshot goes to a replica that has applied the CSN that the client has seen (I11)."""
    result = fake_db.insert("u", ROWS)
    fake_cluster["r1"].lag = 1
    with fake_db.snapshot() as snap:
        assert (snap.holder, snap.csn) == ("r2", result.csn)
    for agent in fake_cluster.agents.values():
        agent.lag = 1
    with pytest.raises(StandbyError, match="no replica can serve") as caught:
        fake_db.snapshot()
    assert caught.value.details["snapshot_csn"] == fake_cluster.csn - 1


def test_lost_pin_is_taken_again(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A restarted replica has lost the pin: the next renewal pins the same CSN again."""
    with fake_db.snapshot() as snap:
        fake_db.insert("u", ROWS)
        fake_cluster["r1"].restart()
        snap.renew(1.0)
        assert list(fake_cluster["r1"].pins.values()) == [snap.csn]
        snap.renew(1.0)
        assert fake_cluster["r1"].renewals == 1
    assert not fake_cluster["r1"].pins


def test_pin_moves_to_another_replica(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """When the holder dies the pin goes to another replica, which then serves first."""
    with fake_db.snapshot() as snap:
        fake_cluster["r1"].stop()
        snap.renew(0.5)
        assert (snap.holder, list(fake_cluster["r2"].pins.values())) == ("r2", [snap.csn])
        assert snap.scan("u").count() == 3
    assert not fake_cluster["r2"].pins


def test_a_closed_snapshot_gives_its_pin_back(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A closed snapshot releases its pin and reads nothing any more; a second close does no harm."""
    snap = fake_db.snapshot()
    assert snap.path("u") == f"webhdfs://r1.test:9870/snapshots/{snap.csn}/default/u"
    snap.close()
    snap.close()
    assert not fake_cluster["r1"].pins
    assert snap.closed
    for call in (snap.tables, lambda: snap.read("u")):
        with pytest.raises(SnapshotClosedError, match="closed"):
            call()


def test_close_of_an_unreachable_snapshot(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Closing never raises: a pin that cannot be released ends by itself."""
    snap = fake_db.snapshot()
    for agent in fake_cluster.agents.values():
        agent.stop()
    snap.close()
    assert snap.closed
