"""Random walks over the follower: with any failures, in any order, it follows the log exactly."""

from __future__ import annotations

import random

import pytest

from tests.support.machines.following import END, FollowBench, commit
from tidelock.csnlog.core.committer_messages import LinkChanged
from tidelock.csnlog.core.follower_messages import Inquire, Stopped
from tidelock.csnlog.core.ids import Csn


@pytest.mark.parametrize("seed", range(60))
def test_random_orders_and_failures(seed: int) -> None:
    """With any failures and any order of answers the log is followed exactly (I2)."""
    source = random.Random(seed)
    bench = FollowBench(log=3, read_ahead=source.choice((1, 2, 5, 16)))
    expected = [Csn(2), Csn(3)]
    for _ in range(600):
        choice = source.random()
        if choice < 0.15:
            expected += bench.extend(source.choice((commit("x"), commit("x"), commit("x"), END)))
            if source.random() < 0.5:
                bench.poke(bench.last)
        elif choice < 0.7 and bench.requests:
            bench.serve(source.choice(bench.requests), fail=source.random() < 0.2)
        elif choice < 0.75 and bench.delivery is not None:
            bench.take_delivery()
        elif choice < 0.8:
            bench.tick()
        elif choice < 0.85:
            bench.wake()
        elif choice < 0.88:
            bench.new_session()
        elif choice < 0.9:
            bench.tell(LinkChanged(connected=False, session=bench.session))
        elif bench.paused:
            bench.resume()
    bench.new_session()
    bench.run()
    bench.tick()
    bench.run()
    assert bench.final is None
    assert bench.followed() == expected
    assert len(bench.delivered) == len(expected)


def test_every_question_of_a_chain_may_fail() -> None:
    """A failed question restarts the chain; the verdict is the same in the end."""
    for failing in range(6):
        bench = FollowBench(log=9)
        del bench.log[Csn(5)]
        count = 0
        while bench.final is None:
            if not bench.requests:
                bench.take_delivery() if bench.delivery is not None else bench.resume()
                continue
            question = isinstance(bench.requests[0], Inquire)
            count += question
            bench.serve(fail=question and count == failing)
        assert isinstance(bench.final, Stopped)
        assert bench.final.csn == 5
