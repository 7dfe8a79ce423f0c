"""Cuts between nodes become rules of iptables, and addresses come out of a free network."""

from __future__ import annotations

import json
from ipaddress import IPv4Network

import pytest

from tidelock.testing import subnets
from tidelock.testing.cuts import CLIENTS, Cuts, dropped

ADDRESSES = {CLIENTS: "10.0.0.1", "r1": "10.0.0.2", "r2": "10.0.0.3", "r3": "10.0.0.4"}
NOTHING = "*filter\n:TIDELOCK-IN - [0:0]\n:TIDELOCK-OUT - [0:0]\nCOMMIT\n"


def drops(cuts: Cuts, name: str) -> list[str]:
    """The rules in the namespace of a node."""
    return [line for line in cuts.rules(name, ADDRESSES).splitlines() if line.startswith("-A")]


def test_a_cut_drops_where_packets_arrive() -> None:
    """Both nodes drop what comes from the other one, and nobody else has a rule."""
    cuts = Cuts().cut("r1", "r2", one_way=False)
    assert drops(cuts, "r1") == ["-A TIDELOCK-IN -s 10.0.0.3 -j TIDELOCK-DROP"]
    assert drops(cuts, "r2") == ["-A TIDELOCK-IN -s 10.0.0.2 -j TIDELOCK-DROP"]
    assert cuts.rules("r3", ADDRESSES) == NOTHING


def test_a_cut_of_one_way_leaves_the_other_way_open() -> None:
    """Only the receiver drops."""
    cuts = Cuts().cut("r1", "r2", one_way=True)
    assert drops(cuts, "r1") == []
    assert drops(cuts, "r2") == ["-A TIDELOCK-IN -s 10.0.0.2 -j TIDELOCK-DROP"]


def test_the_machine_itself_gets_no_rules() -> None:
    """Packets of a node to the clients are dropped where they are sent."""
    to = Cuts().cut("r1", CLIENTS, one_way=True)
    assert drops(to, "r1") == ["-A TIDELOCK-OUT -d 10.0.0.1 -j TIDELOCK-DROP"]
    came_from = Cuts().cut(CLIENTS, "r1", one_way=True)
    assert drops(came_from, "r1") == ["-A TIDELOCK-IN -s 10.0.0.1 -j TIDELOCK-DROP"]


def test_an_isolated_node_hears_and_tells_nobody() -> None:
    """It drops what comes from all others, they drop what comes from it, a node of later too."""
    cuts = Cuts().isolate("r1")
    assert len(drops(cuts, "r1")) == 4
    assert drops(cuts, "r2") == drops(cuts, "r3") == ["-A TIDELOCK-IN -s 10.0.0.2 -j TIDELOCK-DROP"]
    later = cuts.rules("r4", {**ADDRESSES, "r4": "10.0.0.5"})
    assert "-A TIDELOCK-IN -s 10.0.0.2 -j TIDELOCK-DROP" in later


def test_an_isolated_node_that_is_joined_to_one_stays_cut_from_the_others() -> None:
    """A join ends what is between two endpoints and nothing else."""
    cuts = Cuts().isolate("r1").join("r2", "r1", ADDRESSES)
    assert not cuts.between("r1", "r2")
    assert not cuts.between("r2", "r1")
    assert all(cuts.between("r1", other) and cuts.between(other, "r1") for other in ("r3", CLIENTS))


def test_an_isolation_ends_without_the_cuts_of_others() -> None:
    """Two faults may act on one link, and the end of the one is not the end of the other."""
    cuts = Cuts().cut("r1", "r2", one_way=True).isolate("r1").isolate("r3")
    assert cuts.rejoin("r1") == Cuts().cut("r1", "r2", one_way=True).isolate("r3")
    assert cuts.rejoin("r2") == cuts


def test_a_join_ends_both_directions() -> None:
    """It does not matter in which order the two are named."""
    assert Cuts().cut("r1", "r2", one_way=False).join("r2", "r1", ADDRESSES) == Cuts()


def test_dropped_packets_are_read_from_the_listing() -> None:
    """The number is that of the rule; another listing is an error."""
    head = "Chain TIDELOCK-DROP (2 references)\n    pkts      bytes target     prot opt in     out\n"
    assert dropped(f"{head}      17     1020 DROP       0    --  *      *       0.0.0.0/0\n") == 17
    with pytest.raises(ValueError, match="TIDELOCK-DROP"):
        dropped(head)


def test_a_network_is_free_if_no_route_overlaps_it() -> None:
    """A route to a part of a network takes it, a route to all of them takes them all, the default none."""
    routes = json.dumps([{"dst": "default"}, {"dst": "10.213.0.7"}, {"dst": "10.213.1.0/24"}])
    assert subnets.free(subnets.used(routes)) == IPv4Network("10.213.2.0/24")
    assert subnets.free([IPv4Network("10.0.0.0/8")]) is None
