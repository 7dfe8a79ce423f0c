"""Writers of the demo against agents that lose answers and forget transactions: each batch counts once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from demo import writer
from demo.writer import Keys, Pace, Writer
from tests.support.replicas.fake_agent import FakeCluster
from tests.support.replicas.fake_http import Fault
from tests.support.waiting import eventually
from tidelock.client import connect
from tidelock.errors import UnknownTableError
from workloads.history import End, History, Recorder, load
from workloads.tpch.orders import Scale
from workloads.tpch.tables import LINEITEM, ORDERS

KEYS = Keys(last_loaded=1000, writers=4, orders=10)
COMMIT = "POST /transactions/.*/commit"
INSERT = "POST /transactions/.*/rows/lineitem"
OUTCOME = "GET /outcomes/.*"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two agents with the tables that writers fill."""
    with FakeCluster("r1", "r2") as cluster:
        for table in (ORDERS, LINEITEM):
            cluster.add_table(table.name, table.schema.empty_table())
        yield cluster


@contextmanager
def writing(cluster: FakeCluster, *, timeout_s: float = 5.0) -> Iterator[Writer]:
    """Writer 1, whose home is r1."""
    with (
        connect(cluster["r1"].url, replica="r1", timeout_s=timeout_s) as home,
        connect([cluster["r2"].url, cluster["r1"].url], timeout_s=timeout_s) as anyone,
    ):
        yield Writer(1, Scale.of(0.01), KEYS, home, anyone, Pace())


def write(cluster: FakeCluster, folder: Path, batches: int, *, timeout_s: float = 5.0) -> History:
    """Let the writer commit some batches, and return its history."""
    file = folder / "history.jsonl"
    with writing(cluster, timeout_s=timeout_s) as worker, Recorder(file) as history:
        worker.run(history, batches)
    return load(file)


def visible(cluster: FakeCluster) -> dict[str, tuple[int, int]]:
    """Return the rows in orders and in lineitem for each order key."""
    orders = cluster.table("orders", cluster.csn)["o_orderkey"].to_pylist()
    lines = cluster.table("lineitem", cluster.csn)["l_orderkey"].to_pylist()
    return {str(key): (orders.count(key), lines.count(key)) for key in sorted({*orders, *lines})}


def noted(history: History) -> dict[str, tuple[int, int]]:
    """Return the writes that should be visible according to the history."""
    return {write.key: write.rows for write in history.ended(End.OK)}


def told(history: History) -> list[tuple[str | None, int | None]]:
    """Return tid and CSN of each acknowledged transaction, in the order of the CSNs."""
    return sorted({(write.tid, write.csn) for write in history.ended(End.OK)}, key=lambda pair: pair[1] or 0)


def test_batches_are_committed_and_noted(cluster: FakeCluster, tmp_path: Path) -> None:
    """Each batch is one transaction of both tables, noted with the tid and CSN that the commit returned."""
    history = write(cluster, tmp_path, 3)
    assert visible(cluster) == noted(history)
    assert told(history) == list(cluster.outcomes.items())
    # The second of four writers: batches of ten, each followed by those of the three others.
    first_keys = (1011, 1051, 1091)
    assert list(noted(history)) == [str(first + number) for first in first_keys for number in range(10)]


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("POST /transactions", Fault.LOST_REQUEST),
        ("POST /transactions", Fault.LOST_ANSWER),
        (INSERT, Fault.LOST_REQUEST),
        (INSERT, Fault.LOST_ANSWER),
        (COMMIT, Fault.LOST_REQUEST),
        (COMMIT, Fault.LOST_ANSWER),
    ],
)
def test_a_lost_message_neither_loses_nor_doubles_a_batch(
    cluster: FakeCluster, tmp_path: Path, pattern: str, fault: Fault
) -> None:
    """After a lost request or a lost answer every order is there once."""
    cluster["r1"].plan(pattern, fault, fault)
    history = write(cluster, tmp_path, 2)
    assert len(told(history)) == 2
    assert visible(cluster) == noted(history)


def test_a_home_that_has_forgotten_is_sent_the_batch_again(cluster: FakeCluster, tmp_path: Path) -> None:
    """After a restart of the home its transaction is gone, and the batch goes into a new one."""
    with writing(cluster) as worker, Recorder(tmp_path / "history.jsonl") as history:
        begin = worker.home.begin
        restarts = iter([True])

        def begin_and_restart(**options: Any) -> object:
            tx = begin(**options)
            if next(restarts, False):
                cluster["r1"].restart()
            return tx

        worker.home.begin = begin_and_restart  # type: ignore[method-assign, assignment]
        worker.run(history, 1)
    assert worker.tally.sent_again == 1
    assert visible(cluster) == noted(load(history.path))


def test_an_unknown_outcome_is_asked_for_elsewhere(cluster: FakeCluster, tmp_path: Path) -> None:
    """If the home is silent after the commit, another replica has the outcome."""
    cluster["r1"].plan(COMMIT, *[Fault.LOST_ANSWER] * 1000)
    cluster["r1"].plan(OUTCOME, *[Fault.LOST_ANSWER] * 1000)
    history = write(cluster, tmp_path, 1, timeout_s=0.3)
    assert cluster["r2"].count(OUTCOME) > 0
    assert visible(cluster) == noted(history)


def test_an_outcome_that_nobody_knows_is_noted_as_unknown(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history records an unknown outcome, and the writer goes on."""
    monkeypatch.setattr(writer, "OUTCOME_TIMEOUT_S", 0.3)
    for agent in (cluster["r1"], cluster["r2"]):
        agent.plan(OUTCOME, *[Fault.LOST_ANSWER] * 1000)
    cluster["r1"].plan(COMMIT, *[Fault.LOST_REQUEST] * 1000)
    writes = write(cluster, tmp_path, 1, timeout_s=0.3).writes
    assert [(write.end, write.csn) for write in writes] == [(End.INFO, None)] * 10
    assert all(write.tid for write in writes)


def test_a_refusal_that_repeating_cannot_mend_ends_the_writer(tmp_path: Path) -> None:
    """A refusal of the batch itself ends the writer."""
    with FakeCluster("r1", "r2") as cluster, pytest.raises(UnknownTableError):
        write(cluster, tmp_path, 1)


def test_a_stopped_writer_ends_without_a_further_batch(cluster: FakeCluster, tmp_path: Path) -> None:
    """A writer can be stopped while the replica does not answer, and before its first batch."""
    with writing(cluster, timeout_s=0.3) as worker, Recorder(tmp_path / "history.jsonl") as history:
        cluster["r1"].stop()
        thread = threading.Thread(target=worker.run, args=(history,))
        thread.start()
        eventually(lambda: worker.tally.sent_again > 0)
        worker.pace.stop()
        thread.join()
        worker.run(history)
    assert {write.end for write in load(history.path).writes} == {End.FAIL}
    assert visible(cluster) == {}


def test_keys_of_writers_never_meet() -> None:
    """Batches of all writers use the keys above the loaded ones, without gaps and overlaps."""
    taken = [
        key
        for batch in range(3)
        for number in range(KEYS.writers)
        for key in range(KEYS.first(number, batch), KEYS.first(number, batch) + KEYS.orders)
    ]
    assert taken == list(range(1001, 1001 + 3 * 4 * 10))


def test_the_pace_calms_down() -> None:
    """The pace has the calm interval from its time on."""
    assert Pace(1.0, calm_after_s=1000.0, calm_interval_s=2.0).interval_s == pytest.approx(1.0)
    assert Pace(1.0, calm_after_s=0.0, calm_interval_s=2.0).interval_s == pytest.approx(2.0)
