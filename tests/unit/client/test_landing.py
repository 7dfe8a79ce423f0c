"""Rows for landing tables at agents of a double: what is certain, what is in doubt, what is sent again."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tidelock.client import Database
from tidelock.client.agents.transport import WHOLE_BODY_BYTES_MAX
from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    DiskFullError,
    FencedError,
    NotEnoughReplicasError,
    StandbyError,
    TidelockError,
    TooManyPartsError,
    UnavailableError,
    UnknownTableError,
)

ROWS = pa.table({"k": [1, 2, 3]})
LAND = "POST /landings/t"


def sent(cluster: FakeCluster) -> int:
    """Return how many landings reached any agent."""
    return sum(agent.count(LAND) for agent in cluster.agents.values())


def test_rows_are_one_request(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """They are durable and not committed: no CSN is known."""
    done = fake_db.land("t", ROWS)
    assert (done.rows, done.csn) == (3, None)
    assert fake_db.read("t")["k"].to_pylist() == [1, 2, 3]
    assert sent(fake_cluster) == 1


def test_much_data_is_sent_in_pieces(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Each has about the bytes of one request, however the rows came; their order stays."""
    count = WHOLE_BODY_BYTES_MAX // 8 * 3 + 1
    whole = pa.table({"k": pa.array(range(count), pa.int64())})
    batches = [
        *whole.slice(0, 5).to_batches(),
        *whole.slice(5, 7).to_batches(),
        *whole.slice(12).to_batches(),
    ]
    assert fake_db.land("t", pa.RecordBatchReader.from_batches(whole.schema, batches)).rows == count
    assert fake_db.read("t")["k"].to_pylist() == list(range(count))
    assert 4 <= sent(fake_cluster) <= 6


def test_no_rows_are_no_request(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Nothing is written, and nothing can fail."""
    assert fake_db.land("nowhere", ROWS.slice(0, 0)).rows == 0
    assert sent(fake_cluster) == 0


@pytest.mark.parametrize("lost", [Fault.LOST_ANSWER, FencedError("fenced"), CommitUnknownError("too few")])
def test_a_doubt_is_told(fake_cluster: FakeCluster, fake_db: Database, lost: Fault | TidelockError) -> None:
    """Rows that may be written are not sent again; the error says how many of the call are written."""
    fake_cluster["r1"].plan(LAND, lost)
    with pytest.raises(CommitUnknownError) as unknown:
        fake_db.land("t", ROWS)
    assert unknown.value.details["rows_written"] == 0
    assert sent(fake_cluster) == 1


@pytest.mark.parametrize("lost", [Fault.LOST_ANSWER, FencedError("fenced"), CommitUnknownError("too few")])
def test_at_least_once_sends_again(
    fake_cluster: FakeCluster, fake_db: Database, lost: Fault | TidelockError
) -> None:
    """The rows are there, maybe twice."""
    fake_cluster["r1"].plan(LAND, lost)
    assert fake_db.land("t", ROWS, at_least_once=True).rows == 3
    assert fake_db.read("t").num_rows == (6 if lost is Fault.LOST_ANSWER else 3)
    assert sent(fake_cluster) == 2


@pytest.mark.parametrize(
    "refusal",
    [TooManyPartsError("too many"), DiskFullError("full"), NotEnoughReplicasError("1 of 2")],
)
def test_a_refusal_after_a_doubt_is_a_doubt(
    fake_cluster: FakeCluster, fake_db: Database, refusal: TidelockError
) -> None:
    """A certain refusal of the second attempt says nothing about the first one."""
    for agent in fake_cluster.agents.values():
        agent.plan(LAND, Fault.LOST_ANSWER, refusal, refusal)
    with pytest.raises(CommitUnknownError, match="not known"):
        fake_db.land("t", ROWS, at_least_once=True, timeout_s=2.0)
    assert sent(fake_cluster) > 1


@pytest.mark.parametrize("again", [False, True])
def test_a_home_that_takes_no_rows(fake_cluster: FakeCluster, fake_db: Database, again: bool) -> None:
    """It has said that nothing is written: another one gets them, once."""
    fake_cluster["r1"].plan(LAND, UnavailableError("suspended"))
    assert fake_db.land("t", ROWS, at_least_once=again).rows == 3
    fake_cluster["r1"].plan(LAND, StandbyError("behind"))
    assert fake_db.land("t", ROWS, at_least_once=again).rows == 3
    assert fake_db.read("t").num_rows == 6


@pytest.mark.parametrize("again", [False, True])
def test_no_home_takes_rows(fake_cluster: FakeCluster, fake_db: Database, again: bool) -> None:
    """Then it is certain that nothing is written."""
    for agent in fake_cluster.agents.values():
        agent.plan(LAND, *[UnavailableError("suspended")] * 50)
    with pytest.raises(UnavailableError):
        fake_db.land("t", ROWS, at_least_once=again, timeout_s=0.5)
    assert fake_db.read("t").num_rows == 0


def test_a_failure_in_the_middle(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The pieces before it are written, and the error says so."""
    rows = WHOLE_BODY_BYTES_MAX // 8
    whole = pa.table({"k": pa.array(range(3 * rows), pa.int64())})
    fake_cluster["r1"].plan(LAND, None, BadRequestError("no"))
    with pytest.raises(BadRequestError) as refused:
        fake_db.land("t", whole)
    assert refused.value.details["rows_written"] == fake_db.read("t").num_rows > 0
    with pytest.raises(UnknownTableError) as unknown:
        fake_db.land("u", ROWS)
    assert unknown.value.details["rows_written"] == 0


def test_rows_land_in_a_table_that_the_client_has_seen(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A home that is behind the client's highest CSN is passed over."""
    fake_db.insert("t", ROWS)
    fake_cluster["r1"].lag = 5
    fake_db.land("t", ROWS)
    assert fake_cluster["r1"].count(LAND) <= 1
    assert fake_db.read("t").num_rows == 6
