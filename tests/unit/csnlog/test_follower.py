"""The follower: order without gaps, rest and wake, epochs, back-pressure, lateness, gaps, restored ensembles.

F4, F9 and F21 are counter-examples of docs/design/failure-scenarios.md.
"""

from __future__ import annotations

import random

import pytest

from tests.support.log_records import in_log
from tests.support.machines.following import END, FollowBench, commit
from tidelock.csnlog.core.committer_messages import LinkChanged
from tidelock.csnlog.core.follower import Follower
from tidelock.csnlog.core.follower_messages import (
    ChainQuestion,
    Get,
    Got,
    Inquire,
    Learned,
    Poked,
    Probe,
    Stopped,
    Unreadable,
)
from tidelock.csnlog.core.ids import Csn, csn
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.phase import FollowerPhase


def resting(log: int = 4, read_ahead: int = 8) -> FollowBench:
    """A follower that has read a log to its end and rests there."""
    bench = FollowBench(log=log, read_ahead=read_ahead)
    bench.run()
    assert bench.followed() == list(range(2, log + 1))
    assert bench.machine.phase is FollowerPhase.RESTING
    bench.asked()
    return bench


# ------------------------------------------------------------------------------- order and economy


def test_a_backlog_is_read_ahead_and_delivered_in_order() -> None:
    """Up to read_ahead reads run at once, answers come in any order, records are delivered in log order."""
    for seed in range(20):
        source = random.Random(seed)
        bench = FollowBench(log=60, read_ahead=8)
        bench.run(order=lambda requests, source=source: source.randrange(len(requests)))  # type: ignore[misc]
        assert bench.followed() == list(range(2, 61))
        assert len(bench.delivered) == 59


def test_never_more_than_read_ahead_under_way() -> None:
    """I16: the window is bounded whatever the order of answers."""
    bench = FollowBench(log=100, read_ahead=8)
    most = 0
    while bench.requests or bench.delivery is not None:
        most = max(most, sum(isinstance(one, Get) for one in bench.requests))
        bench.serve(bench.requests[-1]) if bench.requests else bench.take_delivery()
    assert most == 8
    assert bench.followed() == list(range(2, 101))


def test_records_that_stream_in_are_not_looked_at_one_by_one() -> None:
    """After a look that finds a record the follower reads ahead; it looks again at the end."""
    bench = resting()
    bench.extend(*(commit(n) for n in range(5, 65)))
    bench.wake()
    bench.run()
    asked = bench.asked()
    assert bench.followed() == list(range(2, 65))
    assert sum(text.startswith("probe") for text in asked) == 2
    assert len(asked) <= 60 + 2 + 8


def test_an_own_commit_makes_the_records_below_it_known() -> None:
    """Records of others in between are read at once, without a look, in order."""
    bench = resting()
    bench.extend(*(commit(n) for n in range(5, 9)))
    bench.poke(Csn(8))
    assert bench.asked() == ["get 5", "get 6", "get 7"]
    bench.run()
    assert bench.followed() == list(range(2, 9))


def test_an_own_commit_far_ahead_is_read_in_windows() -> None:
    """A follower that lags is poked by many own commits: its buffer stays bounded, nothing is lost."""
    bench = resting(read_ahead=4)
    bench.extend(*(commit(n) for n in range(5, 45)))
    for n in range(20, 45):
        bench.poke(Csn(n))
    bench.run()
    assert bench.followed() == list(range(2, 45))


def test_hints_of_the_past_are_nothing() -> None:
    """A watch or a poke of an old record causes no request."""
    bench = resting()
    bench.tell(Poked(in_log(Csn(3), commit(3))))
    bench.tell(Got(Csn(4), in_log(Csn(4), commit(4))))
    bench.tell(Learned(99, 1, Csn(9)))
    assert (bench.asked(), bench.followed()) == ([], [2, 3, 4])


def test_a_slow_receiver_slows_the_reads() -> None:
    """Back-pressure: at most read_ahead records wait behind a delivery; the next takes all of them."""
    bench = FollowBench(log=100, read_ahead=8)
    while bench.requests:
        bench.serve()
    assert bench.delivery is not None
    assert len(bench.took) <= 2 * 8
    bench.take_delivery()
    while bench.requests:
        bench.serve()
    assert bench.delivery is not None
    assert len(bench.delivered) + len(bench.delivery) + len(bench.machine.ready) == len(bench.took)
    bench.run()
    assert bench.followed() == list(range(2, 101))


# ------------------------------------------------------------------------------------------- epochs


def test_an_own_commit_in_the_next_epoch_leads_over_end() -> None:
    """A known record of the next epoch does not turn the unused numbers of this epoch into gaps."""
    bench = resting()
    bench.extend(commit(5), END, commit("a"), commit("b"))
    bench.poke(csn(1, 1))
    bench.run()
    assert bench.followed() == [2, 3, 4, 5, 6, csn(1, 0), csn(1, 1)]


@pytest.mark.parametrize("answer", [0, -1])
def test_a_record_behind_end_stops(answer: int) -> None:
    """A record after END in one epoch proves a broken ensemble (I15)."""
    bench = FollowBench(log=4)
    bench.extend(END)
    bench.log[Csn(6)] = commit("impossible")
    bench.run(order=lambda _: answer)
    assert bench.final == Stopped(Csn(6), "this record stands behind the END record of its epoch")
    assert bench.followed() == [2, 3, 4, 5]


@pytest.mark.parametrize("log", [5, 6])
def test_a_start_on_an_end_record(log: int) -> None:
    """The position does not tell the kind of its record, so that is read again."""
    bench = FollowBench(5, log=4)
    bench.extend(END, *(commit("a") for _ in range(log - 5)))
    bench.run()
    assert bench.machine.next == csn(1, log - 5)
    assert bench.followed() == [csn(1, 0)][: log - 5]


# --------------------------------------------------------------------------- late, restored, gaps


@pytest.mark.parametrize("far", [6, 500])
def test_a_gap_at_the_end_is_found_by_counting(far: int) -> None:
    """F21: no watch fires for the gap; the directory has more children than were read, so it is listed."""
    bench = resting()
    bench.log[Csn(far)] = commit("beyond")
    bench.tick()
    bench.run()
    assert isinstance(bench.final, Stopped)
    assert bench.final.csn == 5
    assert "list 5" in bench.asked()


def test_concurrent_reads_that_cross_a_commit_are_no_gap() -> None:
    """get(5) finds nothing, then 5 and 6 are created, then get(6) finds one: read again before judging."""
    bench = resting()
    bench.log[Csn(5)] = commit(5)
    bench.machine.window = 4
    bench.wake()
    del bench.log[Csn(5)]
    bench.serve(next(one for one in bench.requests if one == Get(Csn(5))))
    bench.extend(commit(5), commit(6))
    bench.run()
    assert (bench.final, bench.followed()) == (None, [2, 3, 4, 5, 6])


def test_the_questions_of_a_gap_are_asked_in_one_session() -> None:
    """An answer of another session restarts the chain: that server may lag behind."""
    bench = FollowBench(log=9)
    hidden = bench.log.pop(Csn(5))
    bench.run_until(lambda: any(isinstance(one, Inquire) for one in bench.requests))
    bench.serve()
    assert isinstance(bench.requests[0], Inquire)
    bench.new_session()
    bench.serve()
    assert bench.final is None
    bench.log[Csn(5)] = hidden
    bench.run()
    assert (bench.final, bench.followed()) == (None, list(range(2, 10)))


def test_a_lagging_server_after_an_own_commit_is_no_gap() -> None:
    """Own commits make records known that the server of a new session may not have yet."""
    bench = resting()
    bench.extend(commit(5), commit(6))
    ahead = {number: bench.log.pop(number) for number in (Csn(5), Csn(6))}
    bench.new_session()
    bench.tell(Poked(in_log(Csn(6), commit(6))))
    bench.run_until(lambda: _asks(bench, ChainQuestion.BARRIER))
    bench.log |= ahead
    bench.run()
    assert (bench.final, bench.followed()) == (None, [2, 3, 4, 5, 6])


def test_an_own_commit_that_is_gone_behind_a_barrier_stops() -> None:
    """An acknowledged commit exists; a ZooKeeper that lacks it is an older one (I15, finding 4)."""
    bench = resting()
    bench.extend(commit(5), commit(6))
    del bench.log[Csn(5)], bench.log[Csn(6)]
    bench.new_session()
    bench.tell(Poked(in_log(Csn(6), commit(6))))
    bench.run()
    assert isinstance(bench.final, Stopped)
    assert (bench.final.csn, "holds an older state" in bench.final.reason) == (6, True)
    assert bench.followed() == [2, 3, 4]


# ------------------------------------------------------------------- a ZooKeeper that was set back


def _asks(bench: FollowBench, question: ChainQuestion) -> bool:
    return any(isinstance(one, Inquire) and one.question is question for one in bench.requests)


@pytest.mark.parametrize("reconnect", ["same session", "new session", "start"])
def test_another_record_at_the_own_position_stops(reconnect: str) -> None:
    """Other commits have taken its CSNs, and more follow them: no record of theirs is taken (I10)."""
    bench = resting(log=6)
    for number in range(4, 10):
        bench.log[Csn(number)] = commit(f"other {number}")
    bench.last = Csn(9)
    if reconnect == "start":
        bench.machine = Follower(Csn(6), 8, last=Imprint(0, bench.machine.last.digest))
        bench.tell(LinkChanged(connected=True, session=1))
    elif reconnect == "new session":
        bench.new_session()
    else:
        bench.tell(LinkChanged(connected=False, session=1))
        bench.tell(LinkChanged(connected=True, session=1))
    bench.run()
    assert isinstance(bench.final, Stopped)
    assert bench.final.csn == 6
    assert "ZooKeeper holds another history: at CSN 6 it has the record" in bench.final.reason
    assert "bring back ZooKeeper's newest state" in bench.final.reason
    assert bench.followed() == [2, 3, 4, 5, 6]


def test_what_was_read_before_a_new_connection_is_read_again() -> None:
    """A record that was read ahead belongs to the history of its connection; another may lead elsewhere."""
    bench = FollowBench(log=6)
    bench.run_until(lambda: any(one.csn == 6 for one in bench.requests))
    bench.serve(next(one for one in bench.requests if one.csn == 6))
    bench.log[Csn(6)] = commit("other")
    bench.new_session()
    bench.run()
    assert bench.took[-1] == in_log(Csn(6), commit("other"))


def test_fewer_records_than_were_taken_stop() -> None:
    """The count of a resting follower shows it, also where no connection has broken (finding 4)."""
    bench = resting(log=6)
    for number in (4, 5, 6):
        del bench.log[Csn(number)]
    bench.tick()
    bench.run()
    assert isinstance(bench.final, Stopped)
    assert (bench.final.csn, "lacks the record of CSN 6" in bench.final.reason) == (6, True)


def test_a_stamp_that_goes_back_stops() -> None:
    """A later record that ZooKeeper has written before an earlier one proves two histories."""
    bench = resting(log=4)
    bench.tell(Poked(in_log(Csn(5), commit(5), zxid=7)))
    assert isinstance(bench.final, Stopped)
    assert "has zxid 0x7, and the one before it had 0x3ec" in bench.final.reason
    assert bench.followed() == [2, 3, 4]


def test_an_own_commit_that_contradicts_the_last_record_stops() -> None:
    """The answer to a commit names the CSN of a record that was taken from the log as another one."""
    bench = resting(log=4)
    bench.tell(Poked(in_log(Csn(4), commit("other"))))
    assert isinstance(bench.final, Stopped)
    assert "at CSN 4" in bench.final.reason


def test_a_last_record_of_which_nothing_is_known_is_taken_as_it_is() -> None:
    """A catalog that an earlier version wrote has neither stamp nor digest of its last record."""
    bench = FollowBench(4, log=6)
    bench.run()
    assert (bench.final, bench.followed()) == (None, [5, 6])


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_gap_that_an_own_commit_closes_is_none(answers: int) -> None:
    """The missing record arrives between the questions, and is applied and deleted: later answers are old."""
    bench = FollowBench(log=4)
    del bench.log[Csn(3)]
    bench.run_until(lambda: any(isinstance(one, Inquire) for one in bench.requests))
    for _ in range(answers):
        bench.serve()
    bench.tell(Poked(in_log(Csn(3), commit(3))))
    assert bench.followed() == [2, 3, 4]
    bench.delete_below(4)
    bench.run()
    assert bench.final is None
    bench.extend(commit(5))
    bench.wake()
    bench.run()
    assert bench.followed() == [2, 3, 4, 5]


@pytest.mark.scenario("S75")
def test_deleted_records_do_not_look_like_a_gap() -> None:
    """The count includes no deleted records: the follower lists once for each count, and never stops."""
    bench = resting(log=12)
    bench.tail = Csn(10)
    for _ in range(3):
        bench.tick()
        bench.run()
    assert bench.final is None
    assert bench.asked().count("list 13") == 1
    bench.delete_below(10)
    bench.tick()
    bench.run()
    assert "list 13" not in bench.asked()


def test_an_unreadable_start_stops() -> None:
    """The record at the own position was readable once."""
    bench = FollowBench(4, log=3)
    bench.extend(Unreadable("upgrade needed"))
    bench.run()
    assert bench.final == Stopped(Csn(4), "upgrade needed")


# ----------------------------------------------------------------------------- connections, watches


def test_without_a_connection_nothing_is_asked() -> None:
    """Requests begin with the link and go on with it, in the same session or a new one."""
    bench = FollowBench(log=6, connect=False)
    assert bench.requests == []
    bench.tell(LinkChanged(connected=True, session=1))
    bench.serve()
    bench.tell(LinkChanged(connected=False, session=1))
    while bench.requests:
        bench.serve(fail=True)
    assert bench.asked()
    bench.new_session()
    bench.run()
    assert bench.followed() == [2, 3, 4, 5, 6]


def test_a_record_that_comes_during_the_look() -> None:
    """A poke during a look makes its late "no" invalid."""
    bench = resting()
    bench.extend(commit(5))
    bench.poke(Csn(5))
    assert isinstance(bench.requests[0], Probe)
    bench.extend(commit(6))
    bench.poke(Csn(6))
    bench.run()
    assert bench.followed() == [2, 3, 4, 5, 6]


def test_the_questions_at_rest() -> None:
    """A resting follower asks for the record, the tail and the count, in this order."""
    bench = resting()
    bench.tick()
    bench.run()
    assert bench.asked() == [
        f"{one.value} 5" for one in (ChainQuestion.PROBE, ChainQuestion.TAIL, ChainQuestion.COUNT)
    ]
