"""Subscriptions of the client: each row once and in order, progress that is kept, at whichever replica."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import TIME_MS, FakeCluster
from tests.support.replicas.fake_http import Fault
from tests.support.waiting import eventually
from tidelock.client import Database, Progress, Rows, Subscription, connect
from tidelock.client.reads.position import POSITION_BYTES_MAX, Position
from tidelock.errors import (
    BadRequestError,
    NoSuchCsnError,
    SnapshotTooOldError,
    UnavailableError,
    UnknownTableError,
)

#: Two batches, so that an answer can be cut between them.
ROWS = pa.Table.from_batches([pa.record_batch({"k": [1, 2]}), pa.record_batch({"k": [3]})])
#: Time enough for a progress that a test does not want.
NEVER = "1h"
CHANGED = "POST /tables/default.u/changes/rows"
Told = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def rows(fake_cluster: FakeCluster) -> None:
    """A table `u` with three rows in two batches."""
    fake_cluster.add_table("u", ROWS)


def keys(*values: int) -> pa.Table:
    """Rows with these keys."""
    return pa.table({"k": values})


def told(messages: Iterable[Rows | Progress]) -> Told:
    """Return CSN and keys of each message with rows, and the CSN of each progress."""
    return [
        (one.csn, one.batch["k"].to_pylist()) if isinstance(one, Rows) else (one.csn,) for one in messages
    ]


def in_one(found: Told) -> Told:
    """Join neighbours that have rows of one CSN."""
    joined: Told = []
    for csn, *values in found:
        if values and joined and len(joined[-1]) > 1 and joined[-1][0] == csn:
            joined[-1] = (csn, [*joined[-1][1], *values[0]])
        else:
            joined.append((csn, *values))
    return joined


def test_a_snapshot_comes_first_and_then_its_changes(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The rows at `as_of` are inserts at that CSN; each later commit follows, and a progress after it."""
    start = fake_cluster.csn
    with fake_db.subscribe("u", progress_every=NEVER) as feed:
        assert (feed.as_of, feed.table, feed.position) == (start, "default.u", None)
        first = next(feed)
        assert isinstance(first, Rows)
        assert first.time == datetime.fromtimestamp(TIME_MS / 1000, UTC)
        assert first.batch.slice(0, 1).to_pylist() == [
            {"k": 1, "_change_type": "insert", "_commit_csn": start, "_commit_time": first.time}
        ]
        while isinstance(message := next(feed), Rows):
            pass
        assert message == Progress(start, first.time)
        new = fake_db.insert("u", keys(4, 5)).csn
        changed = next(feed)
        assert isinstance(changed, Rows)
        assert changed.batch.schema == first.batch.schema
        assert told([changed, next(feed)]) == [(new, [4, 5]), (new,)]


def test_rows_have_the_forms_that_programs_read(fake_db: Database) -> None:
    """A message gives its rows as a pyarrow Table, a DataFrame, an Arrow stream, and to an insert."""
    with fake_db.subscribe("u", batch_rows=1) as feed:
        first = next(feed)
    assert isinstance(first, Rows)
    assert first.to_table()["k"].to_pylist() == list(first.to_pandas()["k"]) == [1]
    assert first.to_polars()["k"].to_list() == [1]
    assert pa.table(first).equals(first.to_table())
    assert fake_db.insert("u", first).rows_inserted == 1


def test_without_a_snapshot_only_changes_come(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A subscriber that has the rows at a CSN receives what came after it, up to `until`."""
    start = fake_cluster.csn
    one, two, three = (fake_db.insert("u", keys(key)).csn for key in (4, 5, 6))
    with fake_db.subscribe("u", start, until=two, snapshot=False) as feed:
        assert told(feed) == [(start,), (one, [4]), (two, [5]), (two,)]
        assert feed.closed
    with fake_db.subscribe("u", three, until=three, snapshot=False) as feed:
        assert told(feed) == [(three,)]


def test_an_end_in_the_future_is_waited_for(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """A subscription up to a CSN of the future ends when that exists, also if nothing changed at it."""
    start = fake_cluster.csn
    with fake_db.subscribe("u", until=start + 2, snapshot=False, progress_every=NEVER) as feed:
        assert told([next(feed)]) == [(start,)]
        new = fake_db.insert("u", keys(4)).csn
        fake_db.insert("t", keys(1))
        fake_db.insert("u", keys(5))
        assert told(feed) == [(new, [4]), (start + 2,)]


def test_a_time_ends_it_behind_its_last_commit(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The commits of that time or an earlier one are delivered; the log shows when none can follow."""
    start, until = fake_cluster.csn, datetime.fromtimestamp(TIME_MS / 1000 + 5, UTC)
    fake_cluster.times_ms |= {start + 1: TIME_MS + 5000, start + 2: TIME_MS + 5001}
    with fake_db.subscribe("u", until=until, snapshot=False, progress_every=NEVER) as feed:
        assert told([next(feed)]) == [(start,)]
        new = fake_db.insert("u", keys(4)).csn
        assert told([next(feed), next(feed)]) == [(new, [4]), (new,)]
        fake_db.insert("u", keys(5))
        assert told(feed) == [(new,)]
    assert fake_db.subscribe("u", until.isoformat()).as_of == new
    with pytest.raises(BadRequestError, match="until at or after as_of"):
        fake_db.subscribe("u", until=datetime.fromtimestamp(TIME_MS / 1000, UTC))


def test_progress_comes_while_nothing_changes(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Commits of other tables move the progress, and without any commit the same CSN is told again."""
    with fake_db.subscribe("u", snapshot=False, progress_every=0.001) as feed:
        assert told([next(feed), next(feed)]) == [(fake_cluster.csn,)] * 2
        other = fake_db.insert("t", keys(1)).csn
        assert told([next(feed)]) == [(other,)]


def test_a_difference_is_one_answer_of_an_agent(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The agent is asked for the net rows between two places, which may be times; a cut answer again."""
    start, new = fake_cluster.csn, fake_db.insert("u", keys(4)).csn
    fake_cluster.times_ms[start] = TIME_MS - 1
    fake_cluster["r1"].plan("POST /tables/u/changes/rows", Fault.CUT)
    told = fake_db.diff("u", datetime.fromtimestamp(TIME_MS / 1000 - 0.001, UTC)).to_table()
    assert told["k"].to_pylist() == [4]
    assert fake_cluster["r2"].requests[-1].json == {"from": start, "to": new, "net": True}
    assert fake_cluster["r1"].pins == {}


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.LOST_REQUEST, Fault.LOST_ANSWER])
def test_a_cut_snapshot_goes_on_at_another_replica(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault
) -> None:
    """The next replica sends the rows behind those that were delivered: no row is lost or doubled."""
    fake_cluster["r1"].plan("POST /query", fault)
    with fake_db.subscribe("u", until=fake_cluster.csn) as feed:
        assert in_one(told(feed)) == [(fake_cluster.csn, [1, 2, 3]), (fake_cluster.csn,)]
    assert fake_cluster["r2"].count("POST /query") == 1


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.HALF, Fault.LOST_REQUEST, Fault.SILENCE])
def test_cut_changes_are_asked_for_again_elsewhere(
    fake_cluster: FakeCluster, fake_db: Database, fault: Fault
) -> None:
    """No row of an answer is delivered before all of it has come, so none of them is doubled."""
    start, new = fake_cluster.csn, fake_db.insert("u", ROWS).csn
    fake_cluster["r1"].plan(CHANGED, fault)
    with (
        connect(fake_cluster["r1"].url, timeout_s=1.0, query_timeout_s=1.0) as db,
        db.subscribe("u", start, until=new, snapshot=False) as feed,
    ):
        assert told(feed) == [(start,), (new, [1, 2]), (new, [3]), (new,)]
    assert fake_cluster["r2"].count(CHANGED) == 1


def test_a_subscription_survives_an_error_that_may_pass(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """While no replica answers `next` raises, and then goes on where it was, in rows and in changes."""
    start = fake_cluster.csn
    for agent in fake_cluster.agents.values():
        agent.plan("POST /query", Fault.CUT, Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    feed = fake_db.subscribe("u", until=start + 1)
    found: list[Rows | Progress] = []
    failures = 0
    while not feed.closed:
        try:
            for message in feed:
                found.append(message)
                if isinstance(message, Progress) and message.csn == start:
                    fake_db.insert("u", keys(4))
                    for agent in fake_cluster.agents.values():
                        agent.plan(CHANGED, *[Fault.CUT] * 2)
        except UnavailableError:
            failures += 1
    assert failures > 1
    assert in_one(told(found)) == [(start, [1, 2, 3]), (start,), (start + 1, [4]), (start + 1,)]


def test_messages_and_memory_have_bounds(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """No message has more than `batch_rows` rows or two CSNs; what exceeds `memory_bytes` goes by a file."""
    start = fake_cluster.csn
    one, two = (fake_db.insert("u", ROWS).csn for _ in range(2))
    with fake_db.subscribe("u", start, until=two, snapshot=False, batch_rows=1, memory_bytes=1) as feed:
        assert told(feed)[1:-1] == [(csn, [key]) for csn in (one, two) for key in (1, 2, 3)]
    asked = [request.query for request in fake_cluster["r1"].requests if request.path.endswith("/changes")]
    assert asked[-1]["bytes_max"] == "1"


def test_the_pin_moves_on_behind_the_progress(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The new pin is made before the old one is released, and none is left at the end."""
    agent = fake_cluster["r1"]
    start = fake_cluster.csn
    with fake_db.subscribe("u", snapshot=False, lease=6.0, progress_every=0.001) as feed:
        next(feed)
        assert list(agent.pins.values()) == [start]
        new = fake_db.insert("u", keys(4)).csn
        while feed.position != Position("c1", "default.u", new or 0).to_text():
            next(feed)
        assert start in agent.pins.values()  # the subscriber has not asked for more yet
        while [*agent.pins.values()] != [new]:
            next(feed)
        made = [r for r in agent.requests if r.path.startswith("/snapshots") and "renew" not in r.path]
        assert [r.method for r in made] == ["POST", "POST", "DELETE"]
    assert agent.pins == {}


def test_a_pin_that_cannot_move_stays(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """While no replica makes a new pin the old one keeps the history, and messages come."""
    start = fake_cluster.csn
    with fake_db.subscribe("u", snapshot=False, lease=6.0, progress_every=0.001) as feed:
        next(feed)
        for agent in fake_cluster.agents.values():
            agent.plan("POST /snapshots", *[Fault.LOST_REQUEST] * 4)
        fake_db.insert("u", keys(4))
        tried = fake_cluster["r1"].count("POST /snapshots")
        while fake_cluster["r1"].count("POST /snapshots") == tried:
            next(feed)
        assert start in fake_cluster["r1"].pins.values()


def test_a_start_that_cannot_be_read_is_refused_at_once(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Too old, too new, no such table: the call raises it with its details, and holds no pin."""
    now = fake_cluster.csn
    fake_cluster.horizon = now
    with pytest.raises(SnapshotTooOldError) as old:
        fake_db.subscribe("u", now - 1)
    assert old.value.details["min_csn"] == now
    with pytest.raises(NoSuchCsnError):
        fake_db.subscribe("u", now + 1)
    with pytest.raises(UnknownTableError):
        fake_db.subscribe("nowhere")
    with pytest.raises(BadRequestError, match="until at or after as_of"):
        fake_db.subscribe("u", until=now - 1)
    assert fake_cluster["r1"].pins == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"as_of": True}, "expected as_of as a CSN"),
        ({"until": 1.5}, "expected until as a CSN"),
        ({"until": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - what is refused
        ({"progress_every": 0}, "expected progress_every above 0"),
        ({"batch_rows": 0}, "expected batch_rows above 0"),
        ({"memory_bytes": "many"}, "expected memory_bytes above 0"),
        ({"resume": "{}", "as_of": 2}, "as_of or resume"),
        ({"resume": "{}"}, "expected a position"),
        ({"resume": 7}, "expected a position"),
        ({"resume": "x" * (POSITION_BYTES_MAX + 1)}, "more than 4096 bytes"),
        ({"resume": Position("c2", "default.u", 2).to_text()}, "one of cluster c2"),
        ({"resume": Position("c1", "default.t", 2).to_text()}, "one of table default.t"),
    ],
)
def test_a_wrong_argument_is_named_with_its_form(
    fake_db: Database, arguments: dict[str, Any], words: str
) -> None:
    """The error says what was expected and what was found."""
    with pytest.raises(BadRequestError, match=words):
        fake_db.subscribe("u", **arguments)


def test_a_position_continues_behind_its_progress(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The position is that of the last progress, not of later rows; a later subscription begins there."""
    start = fake_cluster.csn
    with fake_db.subscribe("u", batch_rows=1, progress_every=NEVER) as feed:
        while isinstance(next(feed), Rows):
            assert feed.position is None
        new = fake_db.insert("u", keys(4, 5)).csn
        assert told([next(feed)]) == [(new, [4])]
        kept = feed.position
    assert kept == Position("c1", "default.u", start).to_text()
    with fake_db.subscribe("default.u", resume=kept, until=new) as feed:
        assert told(feed) == [(start,), (new, [4, 5]), (new,)]
    with fake_db.subscribe("u", resume=None, until=fake_cluster.csn) as feed:
        assert in_one(told(feed))[0] == (new, [1, 2, 3, 4, 5])


def test_a_position_is_short_for_the_longest_names() -> None:
    """The text fits into 4 KiB, with room for the longest names that tables and clusters have."""
    longest = Position("c" * 128, f"{'n' * 128}.{'t' * 128}", (1 << 63) - 1).to_text()
    assert len(longest) < POSITION_BYTES_MAX // 8


def test_another_thread_ends_a_subscription(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The thread that waits for a message meets the end, and no pin is left."""
    feed = fake_db.subscribe("u", snapshot=False, progress_every=NEVER)
    assert told([next(feed)]) == [(fake_cluster.csn,)]
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(list, feed)
        eventually(lambda: fake_cluster["r1"].count("GET /tables/default.u/changes") > 2)
        feed.close()
        assert waiting.result() == []
    assert fake_cluster["r1"].pins == {}
    assert list(feed) == []


def test_two_threads_cannot_read_one_subscription(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """The second thread is refused, and the first one goes on."""
    feed = fake_db.subscribe("u", until=fake_cluster.csn + 1, snapshot=False, progress_every=NEVER)
    next(feed)
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(list, feed)
        eventually(lambda: refused(feed))
        new = fake_db.insert("u", keys(4)).csn
        assert told(first.result()) == [(new, [4]), (new,)]


def refused(feed: Subscription) -> bool:
    """Return whether this thread cannot read now."""
    if not feed._reading.locked():
        return False
    with pytest.raises(BadRequestError, match="another thread"):
        next(feed)
    return threading.active_count() > 1


def test_an_error_for_good_closes_the_subscription(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Where history was deleted the subscription says so instead of leaving changes out, and ends."""
    feed = fake_db.subscribe("u", snapshot=False, progress_every=NEVER)
    next(feed)
    fake_db.insert("t", keys(1))
    fake_cluster.horizon = fake_cluster.csn
    with pytest.raises(SnapshotTooOldError):
        next(feed)
    assert feed.closed
    assert list(feed) == []
    assert fake_cluster["r1"].pins == {}
