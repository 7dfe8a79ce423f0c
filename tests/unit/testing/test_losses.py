"""The rules of a node that loses packets, and the count of one that is slowed."""

from __future__ import annotations

from typing import Final

from tidelock.testing.cuts import CLIENTS, Cuts, held_back

ADDRESSES: Final = {"r1": "10.0.0.1", "r2": "10.0.0.2", CLIENTS: "10.0.0.254"}


def losses(cuts: Cuts, name: str) -> list[str]:
    """Return the rules of a node that drop a share of its packets."""
    return [line for line in cuts.rules(name, ADDRESSES).splitlines() if "statistic" in line]


def test_a_share_is_lost_in_both_directions_but_not_inside_the_node() -> None:
    """An agent talks to its own readers over the loopback interface, which no network breaks."""
    cuts = Cuts().lose("r1", 0.25)
    assert losses(cuts, "r1") == [
        "-A TIDELOCK-IN -i eth0 -m statistic --mode random --probability 0.25 -j TIDELOCK-DROP",
        "-A TIDELOCK-OUT -o eth0 -m statistic --mode random --probability 0.25 -j TIDELOCK-DROP",
    ]
    assert losses(cuts, "r2") == []


def test_the_last_share_counts_and_nothing_ends_it() -> None:
    """A second loss replaces the first one, and a share of 0 leaves no rule."""
    cuts = Cuts().lose("r1", 0.25).lose("r1", 0.5)
    assert len(losses(cuts, "r1")) == 2
    assert cuts.lose("r1", 0.0) == Cuts()


def test_cuts_that_end_leave_losses_alone() -> None:
    """Faults that act at the same time are healed one by one."""
    cuts = Cuts().lose("r1", 0.25).cut("r1", "r2", one_way=False)
    assert cuts.join("r1", "r2", ADDRESSES) == Cuts().lose("r1", 0.25)


def test_packets_that_had_to_wait_are_counted() -> None:
    """The second line is that of the brake; a node without one has none to count."""
    listing = """qdisc tbf 8001: root refcnt 2 rate 800Kbit burst 32Kb lat 400ms
 Sent 4096 bytes 4 pkt (dropped 1, overlimits 17 requeues 0)
 backlog 0b 0p requeues 0
"""
    assert held_back(listing) == 17
    assert held_back("qdisc noqueue 0: root refcnt 2\n") == 0
