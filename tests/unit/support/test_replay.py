"""The check of whole histories: a sound history passes, and each kind of fault is found in a bad one."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable

import pytest

from tests.support.histories.replay import Fed, Life, Ran, Refusal, Seen, Story, judge
from tests.support.histories.session_plan import Kill, Start, Step, draw
from tests.support.histories.table_model import (
    Add,
    Delete,
    DropPartition,
    Everything,
    Insert,
    Keys,
    Merge,
    MovePartition,
    Partition,
    Put,
    Read,
    Remainder,
    ReplacePartition,
    Row,
    Rows,
    Statement,
    Truncate,
    Update,
    Upsert,
    View,
    as_arrow,
    effect,
    from_arrow,
)
from workloads.history import End, Logged, LogLine

A, B = "t_1", "t_2"
ROWS: tuple[Row, ...] = ((1, 1, 10), (1, 2, 20), (None, 3, None))
Bend = Callable[[Story], None]


def bag(*rows: Row) -> Rows:
    """Return rows as a bag."""
    return Counter(rows)


def life(name: str, tid: str, isolation: str, *ran: Ran, csn: int | None = None, at: int = 0) -> Life:
    """A committed transaction, or (without CSN) one that was rolled back; it lives from `at` for 10 ns."""
    end, error = (End.OK, "") if csn else (End.FAIL, "rolled back")
    snapshot = int(tid.split("-", maxsplit=1)[0])
    return Life(
        name, "r1", isolation, tid, snapshot, at, list(ran), end=end, csn=csn, ended_ns=at + 10, error=error
    )


def sound() -> Story:
    """Five transactions: one inserts, two delete from the same table, two read; a compaction between."""
    story = Story((A, B), created=3)
    story.lives = [
        life("s1-1", "3-r1-1-1", "snapshot", Ran(Insert(A, ROWS), 3, {"rows": 3}), csn=4, at=100),
        life("s1-2", "4-r1-1-2", "snapshot", Ran(Delete(A, Keys(2, 9)), 4, {"deleted": 2}), csn=6, at=200),
        life("s2-1", "4-r2-1-1", "snapshot", Ran(Read(A, Everything()), 4, {}, bag(*ROWS)), at=205),
        life(
            "s2-2",
            "6-r2-1-2",
            "serializable",
            Ran(Read(A, Partition(1)), 6, {}, bag((1, 1, 10))),
            Ran(Insert(B, ((2, 7, 7),)), 6, {"rows": 1}),
            csn=7,
            at=300,
        ),
        life("s3-1", "6-r3-1-1", "read_committed", Ran(Read(B, Everything()), 7, {}, bag((2, 7, 7))), at=400),
    ]
    refused = story.lives[2]
    refused.failed = Truncate(A)
    details = {"table": f"default.{A}", "holder": "4-r1-1-2"}
    refused.refusal = Refusal(refused.failed, 4, details, 206, 207)
    story.seen = [
        Seen(replica, csn, tables)
        for replica in ("r1", "r2")
        for csn, tables in (
            (3, {A: bag(), B: bag()}),
            (5, {A: bag(*ROWS), B: bag()}),
            (7, {A: bag((1, 1, 10)), B: bag((2, 7, 7))}),
        )
    ]
    deleted = (bag(*ROWS[1:]), bag())
    story.fed = [
        Fed("r1", A, 3, 7, {4: (bag(), bag(*ROWS)), 6: deleted}),
        Fed("r2", A, 4, 6, {6: deleted}),
        Fed("r2", B, 5, 7, {7: (bag(), bag((2, 7, 7)))}),
    ]
    story.log = (
        LogLine(4, (Logged("3-r1-1-1"),)),
        LogLine(5, (Logged("4-r3-1-9", removed=("r1-1-1",), compaction=True),)),
        LogLine(6, (Logged("4-r1-1-2"),)),
        LogLine(7, (Logged("6-r2-1-2"),)),
    )
    return story


def test_a_sound_story_passes() -> None:
    """A sound history has no finding."""
    assert judge(sound()) == []


def a_look_that_lacks_a_row(story: Story) -> None:
    """A replica shows a table without a row."""
    story.seen[1].tables[A].subtract([ROWS[0]])


def a_feed_that_lacks_a_change(story: Story) -> None:
    """A change feed skips a CSN."""
    story.fed[0] = Fed("r1", A, 3, 7, {4: (bag(), bag(*ROWS))})


def a_feed_that_tells_of_compaction(story: Story) -> None:
    """A change feed contains rows that were only moved."""
    moved = (bag(ROWS[0]), bag(ROWS[0]))
    story.fed[1] = Fed("r2", A, 4, 6, {5: moved, 6: story.fed[1].changes[6]})


def a_read_of_another_csn(story: Story) -> None:
    """A transaction has seen a later commit."""
    story.lives[2].ran[0] = Ran(Read(A, Everything()), 4, {}, bag((1, 1, 10)))


def another_number_of_rows(story: Story) -> None:
    """A statement has returned more rows than it changed."""
    story.lives[1].ran[0] = Ran(Delete(A, Keys(2, 9)), 4, {"deleted": 3})


def removed_by_two(story: Story) -> None:
    """A second transaction has deleted the same rows, at a CSN before the first one's."""
    ran = Ran(Delete(A, Keys(3, 3)), 4, {"deleted": 1})
    story.lives.append(life("s4-1", "4-r3-1-2", "snapshot", ran, csn=5, at=200))
    story.log = (story.log[0], LogLine(5, (Logged("4-r3-1-2"),)), *story.log[2:])


def a_serializable_read_that_is_stale(story: Story) -> None:
    """It has read at CSN 4, and commits after the commit that changed what it read."""
    stale = story.lives[3]
    stale.ran[0] = Ran(Read(A, Partition(1)), 4, {}, bag((1, 1, 10), (1, 2, 20)))
    stale.ran[1] = Ran(Insert(B, ((2, 7, 7),)), 4, {"rows": 1})


def a_commit_told_at_another_csn(story: Story) -> None:
    """The session got another CSN than the log has."""
    story.lives[0].csn = 5


def rolled_back_and_in_the_log(story: Story) -> None:
    """The session got the answer that the transaction is not committed, and the log has it."""
    story.lives[3].end = End.FAIL


def a_commit_of_nobody(story: Story) -> None:
    """The log has a transaction that no session has begun."""
    story.log = (*story.log, LogLine(8, (Logged("7-r1-1-9"),)))


def told_that_it_changed_nothing(story: Story) -> None:
    """A transaction with changes was answered without a CSN."""
    story.lives.append(life("s4-1", "7-r1-1-8", "snapshot", Ran(Truncate(A), 7, {"rows": 1}), csn=9))
    story.lives[-1].csn = None


def refused_because_of_what_it_sees(story: Story) -> None:
    """The snapshot of the refused transaction contains the holder's commit."""
    _refusal(story, holder="3-r1-1-1")


def refused_because_of_a_reader(story: Story) -> None:
    """The holder removes nothing."""
    _refusal(story, holder="6-r2-1-2")


def refused_because_of_the_dead(story: Story) -> None:
    """The holder was rolled back before."""
    story.lives.append(life("s4-1", "4-r3-1-2", "snapshot", Ran(Truncate(A), 4, {"rows": 3}), at=150))
    _refusal(story, holder="4-r3-1-2")


def refused_because_of_itself(story: Story) -> None:
    """The holder is the refused transaction itself."""
    _refusal(story, holder="4-r2-1-1")


def refused_at_commit_without_a_reason(story: Story) -> None:
    """A serializable transaction is refused although no rows that it has read were changed."""
    reader = life("s4-1", "7-r3-1-2", "serializable", Ran(Read(A, Everything()), 7, {}, bag((1, 1, 10))))
    reader.refusal = Refusal(None, 7, {"table": f"default.{A}"}, 500, 501)
    story.lives.append(reader)


def _refusal(story: Story, holder: str) -> None:
    details = {"table": f"default.{A}", "holder": holder}
    story.lives[2].refusal = Refusal(Truncate(A), 4, details, 206, 207)


@pytest.mark.parametrize(
    ("bend", "found"),
    [
        (a_look_that_lacks_a_row, "shows t_1"),
        (a_feed_that_lacks_a_change, "told at CSN 6 None"),
        (a_feed_that_tells_of_compaction, "told at CSN 5"),
        (a_read_of_another_csn, "returned"),
        (another_number_of_rows, "told"),
        (removed_by_two, "I7"),
        (a_serializable_read_that_is_stale, "SERIALIZABLE"),
        (a_commit_told_at_another_csn, "I17"),
        (rolled_back_and_in_the_log, "I17"),
        (a_commit_of_nobody, "nobody has asked for"),
        (told_that_it_changed_nothing, "I4"),
        (refused_because_of_what_it_sees, "its snapshot contains"),
        (refused_because_of_a_reader, "removes nothing"),
        (refused_because_of_the_dead, "had ended before"),
        (refused_because_of_itself, "by itself"),
        (refused_at_commit_without_a_reason, "nobody has changed"),
    ],
    ids=lambda item: getattr(item, "__name__", None),
)
def test_a_bad_story_is_found(bend: Bend, found: str) -> None:
    """A bad history is found, with the kind of its fault."""
    story = copy.deepcopy(sound())
    bend(story)
    assert any(found in wrong for wrong in judge(story)), judge(story)


#: Statements on ROWS, with the rows that they remove and the rows that they add.
MEANT: list[tuple[Statement, list[Row], list[Row]]] = [
    (Insert(A, ROWS[:1]), [], [ROWS[0]]),
    (Delete(A, Remainder(20, 10)), [ROWS[0]], []),
    (Update(A, Everything(), Add(1)), [*ROWS], [(1, 1, 11), (1, 2, 21), (None, 3, None)]),
    (Update(A, Keys(1, 1), Put("p", None)), [ROWS[0]], [(None, 1, 10)]),
    (Update(A, Partition(None), Put("v", 5)), [ROWS[2]], [(None, 3, 5)]),
    (Upsert(A, ((2, 1, 1), (2, 9, 9))), [ROWS[0]], [(2, 1, 1), (2, 9, 9)]),
    (Merge(A, ((2, 1, 4), (2, 2, 5), (2, 9, 9))), [ROWS[0], ROWS[1]], [(1, 1, 14), (2, 9, 9)]),
    (DropPartition(A, 1), [*ROWS[:2]], []),
    (DropPartition(A, None), [ROWS[2]], []),
    (Truncate(A), [*ROWS], []),
    (ReplacePartition(A, 1, ((1, 8, 8),)), [*ROWS[:2]], [(1, 8, 8)]),
]


@pytest.mark.parametrize(("statement", "removed", "added"), MEANT, ids=lambda item: str(item)[:50])
def test_each_statement_takes_and_puts_as_said(
    statement: Statement, removed: list[Row], added: list[Row]
) -> None:
    """Each statement removes and adds its rows."""
    done = effect(statement, {A: bag(*ROWS)})
    assert (+done.removed.get(A, Counter()), +done.added.get(A, Counter())) == (bag(*removed), bag(*added))


def test_a_view_sees_its_own_changes() -> None:
    """Own rows that leave again are never announced; committed ones are removed once."""
    view, committed = View(), {A: bag(*ROWS), B: bag()}
    view.run(Insert(A, ROWS[:1]), committed)
    assert view.run(Read(A, Keys(1, 1)), committed).read == bag(ROWS[0], ROWS[0])
    view.run(MovePartition(A, 1, B), committed)
    assert view.run(Truncate(A), committed).told == {"rows": 1}
    assert view.upon(committed) == {A: bag(), B: bag(ROWS[0], ROWS[0], ROWS[1])}
    assert view.missing(committed) == {}
    assert view.missing({A: bag(ROWS[1]), B: bag()}) == {A: bag(ROWS[0], ROWS[2])}


def test_rows_survive_the_way_through_arrow() -> None:
    """Rows go to a table and come back."""
    assert from_arrow(as_arrow(ROWS)) == bag(*ROWS)
    assert from_arrow(as_arrow(())) == bag()


def test_a_plan_is_drawn_from_its_seed() -> None:
    """The same seed gives the same plan, another one another; all replicas run at its end."""

    def plan(seed: int) -> list[Step]:
        return draw(seed, 200, tables=(A, B), replicas=("r1", "r2"), sessions=3, faults=3)

    assert plan(1) == plan(1) != plan(2)
    faults = [step for step in plan(1) if not hasattr(step, "session") and hasattr(step, "replica")]
    down = {step.replica for step in faults if isinstance(step, Kill)}
    started = {step.replica for step in faults if isinstance(step, Start)}
    assert down <= started
