"""The checker by lists finds each class of cycles with its proof, and no cycle where none is."""

from __future__ import annotations

import random

import pytest

from tests.checkers import black_box
from tests.checkers.conflicts import ALL_CHANGES
from tests.checkers.dependencies import Edge, Kind
from tests.checkers.levels import Level, Order, forbidden
from tests.checkers.operations import History
from tests.unit.checkers.histories import a, fail, history, info, ok, r, w


def _names(judged: History, order: Order = Order.NONE) -> list[str]:
    return [one.name for one in black_box.anomalies(judged, order)]


@pytest.mark.parametrize(
    ("kinds", "excluding", "name"),
    [
        ("ww ww", True, "G0"),
        ("ww wr", True, "G1c"),
        ("wr wr", True, "G1c"),
        ("ww process", True, "G0-process"),
        ("wr realtime process", True, "G1c-realtime"),
        ("wr rw", True, "G-single"),
        ("ww rw", True, "G-single"),
        ("ww rw", False, "G2-item"),
        ("rw process", False, "G-single-process"),
        ("rw realtime", False, "G-single-realtime"),
        ("rw wr rw wr", False, "G-nonadjacent"),
        ("rw ww rw ww", True, "G-nonadjacent"),
        ("rw ww rw wr", False, "G2-item"),
        ("rw rw", True, "G2-item"),
        ("rw rw process", True, "G2-item-process"),
        ("rw wr rw ww wr", False, "G-nonadjacent"),
    ],
)
def test_a_cycle_is_classified_by_its_edges_in_any_rotation(kinds: str, excluding: bool, name: str) -> None:
    """The class of a cycle depends on its edges, not on where the search began."""
    words = kinds.split()
    cycle = [Edge(number, (number + 1) % len(words), Kind(kind)) for number, kind in enumerate(words)]
    for shift in range(len(cycle)):
        assert black_box.classify(cycle[shift:] + cycle[:shift], excluding=excluding) == name


def test_a_cycle_is_reported_with_a_reason_for_each_edge() -> None:
    """A report can be followed without the checker."""
    judged = history(ok(a("x", 1), a("y", 1)), ok(r("x", 1), r("y")))
    (violation,) = black_box.anomalies(judged, Order.NONE)
    assert violation.name == "G-single"
    assert sorted((one.source, one.target, one.kind, one.why) for one in violation.cycle) == [
        (0, 1, "wr", "the second has read 1 of the first in x"),
        (1, 0, "rw", "the first has read y without 1 of the second"),
    ]


def test_a_short_cycle_is_found_beside_long_ones() -> None:
    """A proof of two transactions is easier to follow than one of ten."""
    ring = [ok(r(f"k{one}"), a(f"k{(one + 1) % 10}", 1)) for one in range(10)]
    pair = [ok(r("k0"), r("p"), a("q", 1)), ok(r("q"), a("p", 1))]
    lengths = [len(one.cycle) for one in black_box.anomalies(history(*ring, *pair), Order.NONE)]
    assert sorted(lengths) == [2, 10]


def test_concurrent_appends_to_a_list_that_was_read_are_write_skew() -> None:
    """Rows that are only added do not conflict, unless a store says so: then an update is lost."""
    judged = history(ok(r("x"), a("x", 1)), ok(r("x"), a("x", 2)), ok(r("x", 1, 2)))
    assert _names(judged) == ["G2-item"]
    classic = black_box.anomalies(judged, Order.NONE, conflicting=ALL_CHANGES)
    assert [one.name for one in classic] == ["lost-update", "G-single"]


def test_own_elements_do_not_tell_where_a_commit_places_them() -> None:
    """A transaction sees its own element last, and others may commit before it does."""
    judged = history(ok(r("x"), a("x", 1), r("x", 1)), ok(a("x", 2)), ok(r("x", 2, 1)))
    assert black_box.check(judged, Level.SNAPSHOT) == []


@pytest.mark.parametrize(("csns", "names"), [((1, 1), []), ((1, 2), ["G0"]), ((None, None), ["G0"])])
def test_transactions_of_one_csn_have_no_order_among_themselves(
    csns: tuple[int | None, int | None], names: list[str]
) -> None:
    """Group commit may show two transactions in one order in a list and in the other in another."""
    writers = [ok(a("x", one), a("y", one), csn=csn) for one, csn in enumerate(csns)]
    assert _names(history(*writers, ok(r("x", 0, 1)), ok(r("y", 1, 0)))) == names


def test_an_unknown_end_counts_as_a_commit_once_it_was_seen() -> None:
    """A lost answer excuses neither half a transaction nor reads that forget it."""
    torn = (ok(r("x", 1), r("y")), ok(r("z")))
    assert _names(history(info(a("x", 1), a("y", 1)), *torn)) == ["G-single"]
    assert _names(history(info(a("x", 1), a("y", 1)), ok(r("x"), r("y")))) == []


def test_a_commit_that_no_read_shows_comes_after_all_reads() -> None:
    """A process that does not see its own acknowledged commit has lost it."""
    judged = history(ok(a("x", 1), process=7), ok(r("x"), process=7))
    assert _names(judged, Order.PROCESS) == ["G-single-process"]
    assert _names(judged) == []


def test_a_failed_element_does_not_hide_the_order_of_the_others() -> None:
    """An aborted read is reported once, and its list still serves to order the rest."""
    judged = history(fail(a("x", 9)), ok(a("x", 1), a("y", 1)), ok(r("x", 9, 1), r("y")))
    assert _names(judged) == ["G1a", "G-single"]


def test_two_replacements_of_one_version_lose_an_update() -> None:
    """Replacements exclude each other under every rule of conflicts."""
    assert _names(history(ok(r("x"), w("x", 1)), ok(r("x"), w("x", 2)))) == ["lost-update"]
    assert _names(history(ok(r("x"), w("x", 1)), ok(r("x", 1), w("x", 2)))) == []


def test_two_aborted_versions_are_not_one_version() -> None:
    """A read of a failed replacement is reported as that, not as a lost update as well."""
    aborted = (fail(w("x", 1)), fail(w("x", 2)))
    assert _names(history(*aborted, ok(r("x", 1), w("x", 3)), ok(r("x", 2), w("x", 4)))) == ["G1a", "G1a"]


def test_the_second_reader_of_a_replacement_depends_on_its_writer() -> None:
    """Reads of replaced lists say who wrote them, so circular information is found there too."""
    assert _names(history(ok(w("x", 1), r("y", 1)), ok(w("y", 1), r("x", 1)))) == ["G1c"]


@pytest.mark.parametrize("fresh", [True, False])
def test_real_time_binds_only_fresh_readers(fresh: bool) -> None:
    """A reader that has accepted an old snapshot may be placed before commits that ended earlier."""
    judged = history(ok(a("x", 1)), ok(r("y"), fresh=False), ok(r("x"), fresh=fresh), sequential=True)
    assert _names(judged, Order.REALTIME) == (["G-single-realtime"] if fresh else [])
    assert _names(judged, Order.PROCESS) == []


def test_real_time_leads_through_transactions_in_between() -> None:
    """The order of time is transitive, although only its nearest edges are kept."""
    between = [ok(r(f"z{one}")) for one in range(5)]
    judged = history(ok(a("x", 1)), *between, ok(r("x")), sequential=True)
    assert _names(judged, Order.REALTIME) == ["G-single-realtime"]


def test_each_level_forbids_more_than_the_one_before() -> None:
    """A history that keeps a level keeps all weaker ones."""
    for order in Order:
        assert forbidden(Level.READ_COMMITTED, order) < forbidden(Level.SNAPSHOT, order)
        assert forbidden(Level.SNAPSHOT, order) < forbidden(Level.SERIALIZABLE, order)
    for level in Level:
        assert (
            forbidden(level, Order.NONE) < forbidden(level, Order.PROCESS) < forbidden(level, Order.REALTIME)
        )


@pytest.mark.parametrize(
    ("level", "allowed"),
    [
        (Level.READ_COMMITTED, {"internal", "lost-update", "G-single", "G-nonadjacent", "G2-item"}),
        (Level.SNAPSHOT, {"G2-item"}),
        (Level.SERIALIZABLE, set()),
    ],
)
def test_a_level_allows_what_its_definition_does(level: Level, allowed: set[str]) -> None:
    """Snapshot isolation allows write skew and nothing else; read committed forbids only dirty things."""
    assert forbidden(Level.SERIALIZABLE, Order.NONE) - forbidden(level, Order.NONE) == allowed


def test_serial_histories_in_any_order_of_report_are_clean() -> None:
    """Transactions that ran one after the other show no anomaly, whatever they did."""
    for seed in range(10):
        generator = random.Random(seed)
        lists: dict[str, list[int]] = {key: [] for key in "xyz"}
        done = []
        for number in range(60):
            key, other = generator.sample("xyz", 2)
            done.append(ok(r(key, *lists[key]), a(other, number), r(other, *lists[other], number)))
            lists[other].append(number)
        judged = history(*done, sequential=True)
        assert _names(judged, Order.REALTIME) == []
