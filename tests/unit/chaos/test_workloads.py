"""Tests of the judges of workloads: each finds what was planted, and accuses no good history."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from chaos.judging import presence
from chaos.judging.histories import judged
from chaos.record.history import Operation, lines
from chaos.record.violation import Violation
from chaos.workloads import (
    ALL,
    bank,
    derived,
    labels,
    linked_list,
    list_append,
    moves,
    offsets,
    pairs,
    refresh,
    row_checks,
    set_full,
    streams,
    table_lives,
    unique_keys,
)
from tests.checkers.levels import Level
from tests.unit.chaos.planted import Planted

Plant = Callable[[Planted], None]


def _claims(found: Sequence[Violation], check: str) -> set[str]:
    assert {one.check for one in found} <= {check}
    assert all(one.story and one.ns is not None for one in found)
    return {one.claim for one in found}


def test_each_workload_says_what_it_is() -> None:
    """Names are unique, and no two workloads want different values of a setting."""
    assert len({one.name for one in ALL}) == len(ALL)
    assert all(one.promise.endswith(".") for one in ALL)
    wanted = [(name, value) for one in ALL for name, value in one.settings.items()]
    assert len({name for name, _ in wanted}) == len(set(wanted))


# -- list_append --------------------------------------------------------------------------------------------


def _lists() -> Planted:
    plant = Planted()
    plant.operation([["append", "la0/1", 1], ["append", "la2/1", 2]], tid="1-r1-1-1", csn=5, snapshot=1)
    plant.operation([["append", "la2/1", 3]], tid="5-r2-1-1", csn=6, snapshot=5)
    plant.operation([["append", "la0/1", 4]], tid="1-r2-1-2", csn=7)
    plant.operation([["r", "la0/1", [1]], ["r", "la2/1", [2, 3]]], snapshot=6, replica="r1", fresh=False)
    plant.operation([["r", "la0/1", [1, 4]], ["r", "la2/1", [2, 3]]], snapshot=7, replica="r2", fresh=False)
    return plant


@pytest.mark.parametrize(
    ("claims", "plant"),
    [
        (set(), lambda _: None),
        (set(), lambda of: of.operation([["r", "la2/1", [2]]], snapshot=5)),
        (
            set(),
            lambda of: of.operation([["r", "la0/1", [1]], ["append", "la0/2", 8]], csn=8, snapshot=6),
        ),
        ({"EXT"}, lambda of: of.operation([["r", "la0/1", []]], snapshot=7, replica="r3")),
        ({"incompatible-order"}, lambda of: of.operation([["r", "la2/1", [3]]], snapshot=7, replica="r3")),
        ({"AGREE"}, lambda of: of.operation([["r", "la0/1", [4, 1]]], snapshot=7, replica="r3")),
        ({"garbage-read"}, lambda of: of.operation([["r", "la0/1", [1, 4, 9]]], snapshot=8)),
        ({"REALTIME"}, lambda of: of.operation([["r", "la2/1", [2]]], snapshot=5, fresh=True)),
        (
            {"SERIAL"},
            lambda of: of.operation(
                [["r", "la0/1", [1]], ["append", "la0/2", 8]], csn=8, snapshot=6, serializable=True
            ),
        ),
        # Two appends to a text at the same time, of which the second one should have been refused.
        (
            {"NOCONFLICT"},
            lambda of: of.operation([["append", "la2/1", 8]], tid="5-r3-1-1", csn=8, snapshot=5),
        ),
    ],
)
def test_anomalies_in_lists_are_found(tmp_path: Path, claims: set[str], plant: Plant) -> None:
    """Both checkers, and the rule of texts."""
    planted = _lists()
    plant(planted)
    found = list_append.of_lines(planted.write(tmp_path / "h.jsonl"))
    assert claims <= _claims(found, "list_append")
    assert bool(found) == bool(claims)


def test_feeds_that_differ_are_told() -> None:
    """A CSN that is told otherwise, an element more or less: all are found."""
    order = {("la0", 1): 5, ("la0", 4): 7, ("la1", 9): 6}
    assert list_append.feeds_differ("r1", dict(order), order) == []
    for wrong in ({**order, ("la0", 4): 8}, {("la0", 1): 5}, {**order, ("la0", 6): 8}):
        [found] = list_append.feeds_differ("r1", wrong, order)
        assert found.claim == "feed"


def test_lists_are_put_into_the_order_of_their_commits(tmp_path: Path) -> None:
    """Transactions of one CSN have the order of their begins, own elements stand behind, texts stay."""
    planted = Planted()
    planted.operation([["append", "la0/1", 2]], csn=6)
    planted.operation([["append", "la0/1", 1]], csn=6)
    planted.operation([["append", "la0/1", 9], ["r", "la0/1", [1, 2, 3, 9]]], end="info")
    planted.operation([["r", "la0/1", [1, 2, 3]], ["r", "la2/1", [5, 4]]], snapshot=6)
    order = {("la0", 3): 5, ("la0", 1): 6, ("la0", 2): 6}
    path = tmp_path / "ordered.jsonl"
    assert list_append.write_ordered(planted.lines, order, path) == []
    *_, first, second = [line for line in lines(path) if line["type"] != "invoke"]
    assert first["value"][1] == ["r", "la0/1", [3, 2, 1, 9]]
    assert second["value"] == [["r", "la0/1", [3, 2, 1]], ["r", "la2/1", [5, 4]]]
    texts = [line["value"] for line in list_append.texts_of(lines(path)) if line["type"] == "ok"]
    assert texts == [[["r", "la2/1", [5, 4]]]]


def test_rows_that_the_feed_does_not_tell_of_are_found(tmp_path: Path) -> None:
    """A reader sees an element, and nobody who follows the feed ever does."""
    planted = Planted()
    planted.operation([["r", "la0/1", [1, 7]]], snapshot=6, tid="6-r1-1-1")
    [found] = list_append.write_ordered(planted.lines, {("la0", 1): 5}, tmp_path / "ordered.jsonl")
    assert (found.claim, found.tids) == ("feed", ("6-r1-1-1",))
    assert "[7]" in found.story


def test_keys_take_turns_after_twelve_changes() -> None:
    """A key is changed about twelve times, and the newest are read."""
    keys = list_append.Keys()
    drawn = [keys.change(random.Random(number)) for number in range(360)]
    assert max(drawn.count(key) for key in set(drawn)) == 12
    assert keys.all()[-1] == max(drawn)
    assert keys.newest() == keys.all()[-20:]


# -- registers ----------------------------------------------------------------------------------------------


def _accounts(total: int, **others: list[int]) -> Plant:
    rows = {f"{table}/{account}": [1] for table in bank.TABLES for account in range(bank.ACCOUNTS)}
    rows |= {name.replace("__", "/"): stamps for name, stamps in others.items()}
    value = [["r", key, stamps] for key, stamps in rows.items()]
    return lambda of: of.operation(value, snapshot=9, replica="r1", total=total)


@pytest.mark.parametrize(
    ("wrong", "plant"),
    [
        (False, _accounts(bank.TOTAL)),
        (True, _accounts(bank.TOTAL - 5)),
        (True, _accounts(bank.TOTAL, bank_a__1=[1, 2])),
        (True, _accounts(bank.TOTAL, bank_b__0=[])),
    ],
)
def test_a_total_that_changes_is_found(wrong: bool, plant: Plant) -> None:
    """Money that was made or lost, and an account that is there twice or not at all."""
    planted = Planted()
    plant(planted)
    found = bank.wrong_totals(planted.lines)
    assert _claims(found, "bank") == ({"total constant"} if wrong else set())


def test_a_lost_transfer_is_found(tmp_path: Path) -> None:
    """Two transfers that have read the same version of an account, and were both acknowledged."""
    planted = Planted()
    planted.operation([["w", "bank_a/1", 1], ["w", "bank_b/1", 2]], tid="1-r1-1-1", csn=2, snapshot=1)
    for number, stamp in ((2, 10), (3, 20)):
        value: list[Operation] = [
            ["r", "bank_a/1", [1]],
            ["r", "bank_b/1", [2]],
            ["w", "bank_a/1", stamp],
            ["w", "bank_b/1", stamp],
        ]
        planted.operation(value, tid=f"2-r1-1-{number}", csn=number + 1, snapshot=2)
    path = planted.write(tmp_path / "h.jsonl")
    assert "NOCONFLICT" in _claims(judged("bank", path, level=Level.SERIALIZABLE), "bank")
    [one, *_] = judged("bank", path, level=Level.SERIALIZABLE)
    assert set(one.tids) == {"2-r1-1-2", "2-r1-1-3"}


def test_a_long_fork_is_found(tmp_path: Path) -> None:
    """Two readers that see two writes in opposite orders."""
    planted = Planted()
    planted.operation([["append", "fork/0.0", 1]], tid="1-r1-1-1", csn=2)
    planted.operation([["append", "fork/0.1", 2]], tid="1-r2-1-1", csn=3)
    planted.operation([["r", "fork/0.0", [1]], ["r", "fork/0.1", []]], snapshot=2)
    path = planted.write(tmp_path / "good.jsonl")
    assert judged("long_fork", path, level=Level.SERIALIZABLE) == []
    planted.operation([["r", "fork/0.0", []], ["r", "fork/0.1", [2]]], snapshot=3)
    path = planted.write(tmp_path / "bad.jsonl")
    claims = {one.claim for one in judged("long_fork", path, level=Level.SERIALIZABLE)}
    assert {"EXT", "G-nonadjacent"} <= claims


def test_a_key_that_is_there_twice_is_found() -> None:
    """A key that is there twice, and two inserts of a key that were both acknowledged."""
    planted = Planted()
    planted.operation([["w", "unique_first/1", 1]], tid="1-r1-1-1", csn=2)
    planted.operation([["w", "unique_first/1", 2]], end="fail")
    planted.operation([["r", "unique_first/1", [1]], ["r", "unique_newest/1", []]], snapshot=2)
    assert unique_keys.twice(planted.ended) == unique_keys.two_winners(planted.ended) == []
    planted.operation([["w", "unique_first/1", 3]], tid="1-r2-1-1", csn=3)
    planted.operation([["r", "unique_newest/1", [4, 5]]], snapshot=3)
    assert _claims(unique_keys.twice(planted.ended), "unique_keys") == {"unique key"}
    [one] = unique_keys.two_winners(planted.ended)
    assert one.tids == ("1-r1-1-1", "1-r2-1-1")


# -- sets of rows -------------------------------------------------------------------------------------------


def test_half_of_a_pair_is_found() -> None:
    """A number without its counterpart, in either table."""
    for plus, minus, wrong in (([1, 2], [-1, -2], False), ([1, 2], [-1], True), ([1], [-1, -1], True)):
        planted = Planted()
        value = [["r", pairs.PLUS, plus], ["r", pairs.MINUS, minus]]
        planted.operation(value, f="read", snapshot=3, replica="r1")
        assert bool(pairs.unpaired(planted.ended)) == wrong


@pytest.mark.parametrize(
    ("here", "there", "wrong"),
    [
        (moves.ALL, (), False),
        (moves.ALL[:9], moves.ALL[9:], False),
        (moves.ALL[:9], moves.ALL[10:], True),
        (moves.ALL[:10], moves.ALL[9:], True),
        (moves.ALL, (99,), True),
    ],
)
def test_a_row_that_is_not_in_one_table_is_found(
    here: Sequence[int], there: Sequence[int], wrong: bool
) -> None:
    """A row that is lost, one in both tables, and one that nobody has made."""
    planted = Planted()
    value = [["r", table, list(rows)] for table, rows in zip(moves.TABLES, (here, there), strict=True)]
    planted.operation(value, f="read", snapshot=3, replica="r1")
    assert _claims(moves.not_once(planted.ended), "moves") == ({"each row once"} if wrong else set())


def test_moved_rows_are_the_same_everywhere() -> None:
    """Two replicas that disagree at a CSN."""
    planted = Planted()
    for split in (3, 4):
        value = [
            ["r", moves.TABLES[0], list(moves.ALL[:split])],
            ["r", moves.TABLES[1], list(moves.ALL[split:])],
        ]
        planted.operation(value, f="read", snapshot=3, replica=f"r{split}")
    assert _claims(moves.not_once(planted.ended), "moves") == {"replicas agree"}


@pytest.mark.parametrize(
    ("tables", "claim"),
    [
        ([["lives_a", 7, [[7, 1], [7, 2]], [["d9", [9]]]], ["lives_b", 8, [], [["d9", []]]]], None),
        ([["lives_a", 7, [[7, 1], [7, 2]], [["d9", [9, None]]]]], "defaults"),
        ([["lives_a", 7, [[7, 1], [7, 2]], [["d9", [8]]]]], "defaults"),
        ([["lives_a", 7, [[7, 1], [7, 2]]], ["lives_b", 8, []]], None),
        ([["lives_b", 8, []]], None),  # table 7 was dropped
        ([["lives_a", 7, [[7, 1], [7, 2]]], ["lives_b", 7, [[7, 1], [7, 2]]]], "one name"),
        ([["lives_a", 7, [[7, 1], [7, 2]]], ["lives_a", 8, []]], "one table"),
        ([["lives_between", 7, [[7, 1], [7, 2]]]], "no state in between"),
        ([["lives_a", 7, [[7, 1], [6, 5], [7, 2]]]], "rows of their table"),
        ([["lives_a", 7, [[7, 1], [7, 1], [7, 2]]]], "each row once"),
        ([["lives_a", 7, [[7, 1]]]], "acknowledged rows"),
    ],
)
def test_a_row_that_is_not_in_its_own_table_is_found(tables: list[Any], claim: str | None) -> None:
    """A row that was acknowledged for a table is there as long as it lives, once, and nowhere else."""
    planted = Planted()
    planted.operation([["add", 7, 1]], f="add", csn=3)
    planted.operation([["add", 7, 2]], f="add", csn=4)
    planted.operation([["add", 7, 3]], f="add", csn=9)
    planted.operation([["add", 7, 4]], f="add", end="fail")
    shown = [[*table, []][:4] for table in tables]
    planted.operation([["r", "tables", shown]], f="read", snapshot=5, replica="r1")
    assert _claims(table_lives.judged(planted.ended), "table_lives") == ({claim} if claim else set())


@pytest.mark.parametrize(
    ("table", "to", "csn", "end", "missing"),
    [
        (7, 3, 6, "ok", [1]),  # row 2 is of CSN 4
        (7, 4, 6, "ok", [1, 2]),
        (7, 2, 3, "ok", [2]),
        (8, 2, 6, "ok", [1, 2]),
        (7, 2, 6, "ok", []),
        (7, 2, 6, "fail", [1, 2]),
        (7, 2, None, "ok", [1, 2]),  # nothing was to be restored
        (7, 2, None, "info", []),
        (7, 3, None, "info", [1]),
        (8, 2, None, "info", [1, 2]),
    ],
)
def test_rows_that_a_restore_may_not_take_are_missed(
    table: int, to: int, csn: int | None, end: str, missing: list[int]
) -> None:
    """A restore takes rows that came after its CSN, of its table, and before its commit; no others."""
    planted = Planted()
    planted.operation([["add", 7, 1]], f="add", csn=3)
    planted.operation([["add", 7, 2]], f="add", csn=4)
    planted.operation([["restore", table, to]], f="restore", csn=csn, end=end)
    planted.operation([["r", "tables", [["lives_a", 7, [], []]]]], f="read", snapshot=7, replica="r1")
    stories = [one.story for one in table_lives.judged(planted.ended)]
    assert [f"Expected rows {missing} of table 7" in story for story in stories] == [True] * bool(missing)


def test_a_table_that_comes_back_from_the_dead_is_found() -> None:
    """Whatever the order in which the CSNs were read; two replicas that disagree are found, too."""
    planted = Planted()
    for snapshot, tables in ((9, [7]), (5, [7]), (7, [8])):
        value = [["r", "tables", [[f"lives_{table}", table, [], []] for table in tables]]]
        planted.operation(value, f="read", snapshot=snapshot, replica="r1")
    assert _claims(table_lives.judged(planted.ended), "table_lives") == {"dropped for ever"}
    planted.operation([["undrop", "lives_7", "lives_7"]], f="define", end="fail")
    assert _claims(table_lives.judged(planted.ended), "table_lives") == {"dropped for ever"}
    planted.operation([["undrop", "lives_7", "lives_7"]], f="define", end="info")
    assert not table_lives.judged(planted.ended)
    planted.operation([["r", "tables", []]], f="read", snapshot=7, replica="r2")
    assert "replicas agree" in _claims(table_lives.judged(planted.ended), "table_lives")


@pytest.mark.parametrize(
    ("checked", "broken", "found"),
    [(True, [], False), (False, [[1, 2, 1]], False), (True, [[1, 2, 1]], True)],
)
def test_a_row_beside_the_check_that_it_breaks_is_found(
    checked: bool, broken: list[list[int]], found: bool
) -> None:
    """Rows that break it are there while the table does not have the check, and not longer."""
    planted = Planted()
    planted.operation([["insert", 1, [2, 1]]], f="change", csn=3)
    planted.operation([["r", "checked", [checked, broken, []]]], f="read", snapshot=5, replica="r1")
    assert _claims(row_checks.judged(planted.ended), "row_checks") == ({"checks"} if found else set())
    planted.operation([["r", "checked", [False, [], [[1, 2, 3, 4]]]]], f="read", snapshot=6, replica="r1")
    claims = _claims(row_checks.judged(planted.ended), "row_checks")
    assert claims == {"generated columns"} | ({"checks"} if found else set())


@pytest.mark.parametrize(
    ("read", "right"),
    [
        ([0, 4, 5, 5], True),
        ([None, None, 0, 0], False),  # the progress says five
        ([0, 3, 4, 4], False),
        ([0, 5, 5, 5], False),
        ([1, 5, 5, 5], False),
        ([0, 4, 6, 5], False),
    ],
)
def test_what_consumers_write_twice_or_not_is_found(read: list[int | None], right: bool) -> None:
    """A gap, an integer twice, and rows that are not as many as the progress says."""
    planted = Planted()
    planted.operation([["consume", 1, [0, 5]]], f="consume", csn=3)
    for earlier in ([None, None, 0, 0], [0, 1, 2, 2]):
        planted.operation([["r", offsets.TABLE, earlier]], f="read", snapshot=3, replica="r1")
    planted.operation([["r", offsets.TABLE, read]], f="read", snapshot=4, replica="r1")
    claims = _claims(offsets.judged(planted.ended, 4, 5), "offsets")
    assert claims == (set() if right else {"each once, without a gap"})


@pytest.mark.parametrize(
    ("links", "fault"),
    [
        ([(0, -1)], None),
        ([(0, 2), (1, -1), (2, 1)], None),
        ([(0, 2), (1, -1)], "a dangling link to node 2"),
        ([], "a dangling link to node 0"),
        ([(0, 1), (1, 0)], "a ring through node 0"),
        ([(0, -1), (0, 1), (1, -1)], "node 0 twice"),
        ([(0, -1), (1, -1)], "nodes [1] that nothing leads to"),
    ],
)
def test_links_that_make_no_chain_are_found(links: list[tuple[int, int]], fault: str | None) -> None:
    """A chain, and everything that is none."""
    assert linked_list.fault_of(links) == fault
    planted = Planted()
    planted.operation([["r", linked_list.TABLE, links]], f="read", snapshot=3)
    assert _claims(linked_list.broken(planted.ended), "linked_list") == (
        {"no dangling link"} if fault else set()
    )


def test_two_chains_at_one_csn_are_found() -> None:
    """Two chains at one CSN."""
    planted = Planted()
    for links in ([[0, -1]], [[0, 1], [1, -1]]):
        planted.operation([["r", linked_list.TABLE, links]], f="read", snapshot=3)
    assert _claims(linked_list.broken(planted.ended), "linked_list") == {"replicas agree"}


def _sums(source: int, totals: int, counted: int, *, inserts: int = 1) -> Planted:
    planted = Planted()
    planted.operation([["insert", derived.SOURCE, 5]], f="insert", csn=4)
    planted.operation([["insert", derived.SOURCE, 9]], f="insert", end="info")
    value = [
        ["r", derived.SOURCE, [[1, source, 1]]],
        ["r", derived.TOTALS, [[1, totals, 1]]],
        ["r", derived.COUNTS, [[0, inserts, counted]]],
    ]
    planted.operation(value, f="read", snapshot=4, inserts=1)
    return planted


def test_a_derived_table_that_lags_is_found() -> None:
    """A derived table that lags, one of the second level that does, and rows that are lost or made up."""
    for good in (_sums(5, 5, 1), _sums(14, 14, 1)):
        assert derived.unequal(good.ended) == derived.sums_lost(good.ended) == []
    for bad in (_sums(5, 4, 1), _sums(5, 5, 2), _sums(5, 5, 1, inserts=2)):
        assert _claims(derived.unequal(bad.ended), "derived") == {"derived"}
    for bad in (_sums(4, 4, 1), _sums(15, 15, 1)):
        assert _claims(derived.sums_lost(bad.ended), "derived") == {"acknowledged rows"}


@pytest.mark.parametrize(
    ("wrong", "plant"),
    [
        (False, lambda of: of.operation([["r", "labels_jobs/1", [1]]], snapshot=5)),
        (False, lambda of: of.operation([["r", "labels_jobs/1", []]], snapshot=4)),
        (True, lambda of: of.operation([["r", "labels_jobs/1", []]], snapshot=5)),
        (True, lambda of: of.operation([["r", "labels_jobs/1", [1, 2]]], snapshot=5)),
        (True, lambda of: of.operation([["append", "labels_jobs/1", 3]], tid="1-r1-1-3", csn=6)),
        # A later batch than this one was done.
        (False, lambda of: of.operation([["r", "labels_batches/4", []]], snapshot=9)),
        (True, lambda of: of.operation([["r", "labels_batches/5", []]], snapshot=9)),
        # Another client was told that job 2 is done.
        (True, lambda of: of.operation([["r", "labels_jobs/2", []]], snapshot=7)),
    ],
)
def test_a_labelled_job_not_done_once_is_found(wrong: bool, plant: Plant) -> None:
    """A job that is there twice, acknowledged twice, or said to be done and not there."""
    planted = Planted()
    planted.operation([["append", "labels_jobs/1", 1]], tid="1-r1-1-1", csn=5)
    planted.operation([["append", "labels_jobs/1", 2]], end="fail", told=5)
    planted.operation([["append", "labels_jobs/2", 4]], end="fail", told=7)
    for number in (4, 5):
        planted.operation([["append", f"labels_batches/{number}", 4]], end="fail", told=8, batch=5)
    plant(planted)
    assert _claims(labels.not_once(planted.ended), "labels") == ({"label once"} if wrong else set())


def test_orders_and_line_items() -> None:
    """An order that lacks a line item, and one that is lost as a whole."""
    planted = Planted()
    planted.operation([["add", refresh.ORDERS, 1]], f="add", tid="1-r1-1-1", csn=4)
    planted.operation([["r", refresh.ORDERS, [1]]], f="read", snapshot=4)
    assert refresh.mismatches(planted.ended) == presence.judged("refresh", planted.ended) == []
    planted.operation([["r", refresh.ORDERS, [1]]], f="read", snapshot=4, wrong=[[1, 3, 30, 2, 20]])
    planted.operation([["r", refresh.ORDERS, []]], f="read", snapshot=5)
    assert _claims(refresh.mismatches(planted.ended), "refresh") == {"orders have their line items"}
    assert _claims(presence.judged("refresh", planted.ended), "refresh") == {"lost"}


def test_an_element_with_other_bytes_is_none_that_was_added() -> None:
    """Where the bytes are read, an element that has lost or changed them is told as its complement."""
    right = [set_full.row(0, element) for element in (4, 5, 8)]
    [noise] = right[0]["noise"].to_pylist()
    wrong = pa.table({"s": [0, 0, 0], "e": [12, 16, 20], "noise": [None, noise, bytes(len(noise))]})
    rows = pa.concat_tables([*right, wrong.cast(set_full.SCHEMA)])
    snap = cast("Any", SimpleNamespace(read=lambda _table, columns, *_: rows.select(columns)))
    assert set_full.look("t", [0], snap).value == [["r", "t/0", [4, 5, 8, 12, 16, 20]]]
    assert set_full.look("t", [0], snap, noise=True).value == [["r", "t/0", [-21, -17, -13, 4, 5, 8]]]


@pytest.mark.parametrize(
    ("source", "targets", "last", "wrong"),
    [
        ((3, 3, 6, 0), [(2, 2, 3, 0)] * 3, False, None),
        ((3, 3, 6, 0), [(3, 3, 6, 0)] * 3, True, None),
        ((4, 4, 10, 0), [(3, 3, 6, 0)] * 3, False, None),
        ((3, 3, 6, 0), [(2, 2, 3, 0)] * 3, True, "the targets are not the source"),
        ((3, 3, 6, 0), [(2, 2, 3, 0), (2, 2, 3, 0), (1, 1, 1, 0)], False, "the targets differ"),
        ((3, 3, 6, 0), [(4, 3, 9, 0)] * 3, False, "a row is there twice"),
        ((3, 3, 6, 0), [(3, 3, 9, 1)] * 3, False, "a target has a row that the source has not"),
        ((2, 2, 3, 0), [(2, 2, 3, 0)] * 3, False, "the source has not 3 to 4 rows"),
        ((5, 5, 15, 0), [(2, 2, 3, 0)] * 3, False, "the source has not 3 to 4 rows"),
    ],
)
def test_a_stream_not_exactly_once_is_found(
    source: Sequence[int], targets: Sequence[Sequence[int]], last: bool, wrong: str | None
) -> None:
    """Every way in which a stream can be less or more than exactly once."""
    planted = Planted()
    planted.operation([["insert", streams.SOURCE, n] for n in (1, 2, 3)], f="insert", csn=4)
    planted.operation([["insert", streams.SOURCE, 4]], f="insert", end="info")
    value = [["r", streams.SOURCE, list(source)]]
    value += [["r", table, list(sums)] for table, sums in zip(streams.TARGETS, targets, strict=True)]
    planted.operation(value, f="read", snapshot=4, last=last)
    found = streams.torn(planted.ended)
    assert _claims(found, "streams") == ({"exactly once"} if wrong else set())
    assert wrong is None or wrong in found[0].story
