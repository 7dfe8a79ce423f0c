"""One replica that follows the log and applies it, while others commit, close epochs and delete records.

Follower, executed prefix, the reads of ``find_out``, the commit multi and the roll-over are the product's;
its catalog, its disk and its session to a ZooKeeper that lags are modelled here. Requests of one session are
answered in the order in which they were sent, each from any state that the session may see.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tests.sim.explore.ensemble import Ensemble, RecordFacts, follows, new_cluster
from tests.sim.explore.followers import Asked, Followers, Prefixes, failure, short
from tests.sim.explore.replay import Replays, ReplayView, Returned, ScriptedStore, never
from tests.sim.explore.search import Broken, Move, State
from tests.sim.explore.shard import (
    ABSENT_PART,
    DURABLE,
    FollowerTrouble,
    Shard,
    behind,
    less,
    made_durable,
    not_written,
)
from tests.sim.explore.world import NAMES, ORDERS
from tests.support.wall_clocks import NO_CLOCK
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import Proposal, Queued, Rollover, plan
from tidelock.csnlog.core.committer_messages import LinkChanged, Resumed, RetryLater
from tidelock.csnlog.core.follower_messages import (
    ABSENT,
    ChainQuestion,
    Deliver,
    Delivered,
    Finding,
    FollowEvent,
    Get,
    Got,
    Inquire,
    Learned,
    Missed,
    Poked,
    Probe,
    Probed,
    Stopped,
    Tick,
    TooLate,
    Unreadable,
    Woken,
)
from tidelock.csnlog.core.ids import CSN_MAX, CSN_NONE, Csn, PartId, TableId, Tid, part_id
from tidelock.csnlog.core.imprint import UNKNOWN, Imprint
from tidelock.csnlog.core.model import AddPart, LogRecord, TidRecord
from tidelock.csnlog.core.phase import FollowerPhase
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Check, Delete, Op, SetData
from tidelock.csnlog.core.visibility import PartVersions, visible
from tidelock.csnlog.reading import find_out
from tidelock.errors import CorruptError
from tidelock.replication.core.messages import (
    Applied,
    Apply,
    NotApplied,
    PartHeld,
    PartLost,
    PrefixEvent,
    RecordRead,
)

#: The one that commits, and the one that follows.
HOME, FOLLOWER = NAMES
FENCE: Final = Check(tree.session(HOME), 0)

Next = tuple[Move, "Shard | Broken"]


def _record(tx: int, parts: Sequence[PartId]) -> TidRecord:
    tid = Tid(Csn(1), HOME, 1, tx + 1)
    tables = (TableId(f"d.t{number}") for number in range(len(parts)))
    entries = (AddPart(table, part, "", 1, 1, "0" * 32) for table, part in zip(tables, parts, strict=True))
    return TidRecord(str(tid), tuple(entries), holders=(HOME,))


class Following:
    """The model; see the module.

    Args:
        txs: How many parts, each of another table, each transaction has that is committed.
        read_ahead: Of the follower.
        announced: When a part is said to be held: once it is durable. A planted bug may say it earlier.
    """

    faults = frozenset(
        {"own", "poke", "roll", "tail", "strike", "fail", "session", "crash", "crash, written", "damage"}
    ) | {"full", "copy", "back"}
    idle = frozenset({"tick"})

    def __init__(
        self,
        replays: Replays,
        txs: Sequence[int],
        trouble: FollowerTrouble,
        *,
        read_ahead: int = 2,
        announced: int = DURABLE,
    ) -> None:
        self.ensemble = Ensemble(new_cluster(NAMES, (ORDERS,), epoch_limit=1000))
        self._followers, self._prefixes = Followers(read_ahead), Prefixes(apply_records_max=2)
        self._replays, self._announced = replays, announced
        names = (part_id(HOME, 1, number) for number in itertools.count(1))
        made = [tuple(itertools.islice(names, parts)) for parts in txs]
        self._records = tuple(_record(tx, parts) for tx, parts in enumerate(made))
        self._parts = tuple((name, self._records[tx].tid) for tx, parts in enumerate(made) for name in parts)
        self._trouble = trouble
        self._shown: dict[tuple[str, Csn | None, Csn], bool] = {}
        self._findings: dict[tuple[int, ChainQuestion, Csn], Finding | None] = {}

    def initial(self) -> State:
        """The log is empty, the follower has just begun."""
        first = Shard(
            (0,),
            self.ensemble.log(0),
            -1,
            -1,
            parts=(ABSENT_PART,) * len(self._parts),
            trouble=self._trouble,
        )
        begun = self._begin(first)
        assert isinstance(begun, Shard)
        return begun

    def _begin(self, s: Shard) -> Shard | Broken:
        """A process begins behind what the catalog has; its start has passed a barrier."""
        begun = s._replace(
            machine=self._followers.begin(s.applied, s.last),
            prefix=self._prefixes.begin(s.applied),
            seen=s.now,
        )
        return self._tell(begun, LinkChanged(connected=True, session=s.session))

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, Shard)
        yield from self._of_home(state)
        if state.trouble.back:
            yield from self._of_zookeepers_disks(state)
        for number, part in enumerate(state.parts):
            yield from self._of_disk(state, number, part)
        if state.machine < 0:
            if not (state.struck or state.stopped):
                yield ("start", 0), self._begin(state._replace(session=state.session + 1))
            return
        yield from self._of_follower(state)
        yield from self._of_catalog(state)
        if state.trouble.crash:
            yield ("crash", 0), self._dies(state)
            if state.writing and self._lacks(state) is None:
                yield ("crash, written", 0), self._dies(made_durable(state))

    def _of_home(self, s: Shard) -> Iterator[Next]:
        """The others commit, close the epoch, and collect the log."""
        newest = s.history[-1]
        found = self.ensemble.read(newest, tree.EPOCH)
        assert isinstance(found, Ok)
        epoch, version = codec.decode_epoch(found.value.data), found.value.version
        if s.sent < len(self._records):
            item = Queued.of(Proposal(self._records[s.sent], {}))
            commit = plan((item,), home=HOME, fence=0, epoch=epoch, epoch_version=version)
            done = self._apply(s._replace(sent=s.sent + 1), commit.ops(NO_CLOCK))
            yield ("commit", s.sent), done
            if s.trouble.own and s.machine >= 0 and isinstance(done, Shard):
                yield ("own", s.sent), less(done, "own")._replace(pokes=(*s.pokes, done.log[-1].csn))
        if s.trouble.roll:
            rollover = Rollover(HOME, 0, epoch, version)
            yield ("roll", epoch), self._apply(less(s, "roll"), rollover.ops(NO_CLOCK))
        for kind, end in (("tail", s.applied), ("strike", s.log[-1].csn)):
            tail = Csn(end + 1)
            if getattr(s.trouble, kind) and self.ensemble.tail(newest) < tail and end > 1:
                deletes = [
                    Delete(tree.record(one.csn), 0) for one in self.ensemble.log(newest) if one.csn < tail
                ]
                moved = SetData(tree.TAIL, codec.encode_csn(tail))
                after = less(s, kind)._replace(struck=s.struck or kind == "strike")
                yield (kind, tail), self._apply(after, (FENCE, moved, *deletes))

    def _apply(self, s: Shard, ops: tuple[Op, ...]) -> Shard | Broken:
        result, state = self.ensemble.apply(s.history[-1], self.ensemble.multis.number(ops))
        assert isinstance(self.ensemble.results.values[result], Ok), ops
        log = s.log
        for entry in self.ensemble.log(state):
            if entry.csn > log[-1].csn:
                log = (*log, entry)
        return self._trimmed(s._replace(history=(*s.history, state), log=log))

    def _of_zookeepers_disks(self, s: Shard) -> Iterator[Next]:
        """They are copied once, and set back to the copy once: all connections break."""
        newest = s.history[-1]
        if s.copy < 0:
            yield ("copy", newest), s._replace(copy=newest, copied=s.log[-1].csn)
        elif s.copy != newest:
            log = tuple(entry for entry in s.log if entry.csn <= s.copied)
            lost = tuple(tid for entry in s.log for tid in entry.tids)
            after = less(s, "back")._replace(history=(s.copy,), seen=0, log=log, lost=lost, pokes=())
            yield ("back", s.copied), after if s.machine < 0 else self._new_session(after, 0)

    def _of_disk(self, s: Shard, number: int, part: int) -> Iterator[Next]:
        """A part comes, and becomes durable; a durable one is found damaged before it is visible."""
        name, tid = self._parts[number]
        if s.machine < 0:
            return
        if part != DURABLE:
            after = s._replace(parts=(*s.parts[:number], part + 1, *s.parts[number + 1 :]))
            announced = part + 1 == self._announced
            yield (
                ("durable" if part + 1 == DURABLE else "written", name),
                self._prefixed(after, PartHeld(name)) if announced else after,
            )
        elif s.trouble.damage and tid not in s.visible:
            parts = (*s.parts[:number], ABSENT_PART, *s.parts[number + 1 :])
            yield ("damage", name), self._prefixed(less(s, "damage")._replace(parts=parts), PartLost(name))

    def _of_follower(self, s: Shard) -> Iterator[Next]:
        """Yield the steps of the follower's session."""
        if s.asked:
            yield from self._serve(s, s.asked[0])
            if s.trouble.fail:
                after = less(s, "fail")._replace(asked=s.asked[1:])
                yield ("fail", 0), self._tell(after, failure(s.asked[0], s.session))
        for number in s.pokes:
            record = self._find_out(s.history[-1], ChainQuestion.RECORD, number)
            if isinstance(record, LogRecord):
                rest = tuple(one for one in s.pokes if one != number)
                yield ("poke", number), self._tell(s._replace(pokes=rest), Poked(record))
        if s.paused:
            yield ("resume", 0), self._tell(s._replace(paused=False), Resumed())
        if s.watched:
            for at in range(s.seen, len(s.history)):
                if self.ensemble.tree(s.history[at]).get(tree.record(s.watched)) is not None:
                    after = s._replace(watched=CSN_NONE, seen=at)
                    yield ("watch", at), self._tell(after, Woken(s.watched))
                    break
        machine = self._followers.at(s.machine)
        if machine.phase is FollowerPhase.RESTING and machine.inquiry is None:
            yield ("tick", 0), self._tell(s, Tick())
        if s.trouble.session:
            for seen in range(len(s.history)):
                yield ("session", seen), self._new_session(less(s, "session"), seen)

    def _new_session(self, s: Shard, seen: int) -> Shard | Broken:
        """Everything under way fails, and the new session starts from an older state."""
        session, asked = s.session + 1, s.asked
        after: Shard | Broken = s._replace(session=session, seen=seen, asked=(), watched=CSN_NONE)
        assert isinstance(after, Shard)
        # The machine remembers its requests until it is told that they failed.
        after = self._tell(after._replace(asked=asked), LinkChanged(connected=True, session=session))
        for _ in asked:
            if isinstance(after, Broken):
                return after
            after = self._tell(after._replace(asked=after.asked[1:]), failure(after.asked[0], 0))
        return after

    def _serve(self, s: Shard, asked: Asked) -> Iterator[Next]:
        """Answer a read: each different answer once, from the oldest state that gives it."""
        answers: dict[FollowEvent, int] = {}
        for at in range(s.seen, len(s.history)):
            barrier = isinstance(asked, Inquire) and asked.question is ChainQuestion.BARRIER
            if barrier and at < s.now:
                continue
            answers.setdefault(self.answer(s, asked, at), at)
        for event, at in answers.items():
            after = s._replace(asked=s.asked[1:], seen=at)
            if isinstance(event, Probed) and event.exists is False:
                after = after._replace(watched=event.csn)
            yield ("serve", at), self._tell(after, event)

    def answer(self, s: Shard, asked: Asked, at: int) -> FollowEvent:
        """The answer to a read from a state of ZooKeeper, as the shell gives it to the follower."""
        state = s.history[at]
        match asked:
            case Get(number):
                record = self._find_out(state, ChainQuestion.RECORD, number)
                assert isinstance(record, LogRecord | Unreadable) or record is ABSENT
                return Missed(number) if record is ABSENT else Got(number, record)
            case Probe(number):
                return Probed(number, bool(self._find_out(state, ChainQuestion.PROBE, number)))
            case Inquire(number, ChainQuestion.BARRIER, _):
                return Learned(number, s.session, finding=True)
            case Inquire(number, question, about):
                return Learned(number, s.session, self._find_out(state, question, about))

    def _find_out(self, state: int, question: ChainQuestion, about: Csn) -> Any:
        key = (state, question, about)
        if key not in self._findings:
            store = ScriptedStore(self.ensemble, (ReplayView(state),), never)
            turn = self._replays.run(find_out(store, question, about, watch=_unheard))
            assert isinstance(turn, Returned), turn
            self._findings[key] = turn.value
        return self._findings[key]

    # ----------------------------------------------------------------------------------------- the machines

    def _tell(self, s: Shard, event: FollowEvent) -> Shard | Broken:
        """Give the follower an event."""
        machine, asked, said = self._followers.step(s.machine, event, s.asked)
        after: Shard | Broken = s._replace(machine=machine, asked=asked)
        for instruction in said:
            assert isinstance(after, Shard)
            match instruction:
                case RetryLater():
                    after = after._replace(paused=True)
                case Deliver(records):
                    after = self._delivered(after, records)
                case TooLate(tail) if not after.struck:
                    return Broken("I12 GC-SAFE", f"the follower needs records below the tail {tail}")
                case TooLate():
                    after = self._ends(after)
                case Stopped() if self._knows_more(after):
                    after = self._ends(after)._replace(stopped=True)
                case Stopped(number, reason):
                    return Broken("I15 FAILSTOP", f"stops at {number} although nothing is wrong: {reason}")
            if isinstance(after, Broken) or after.machine < 0:
                break
        return after if isinstance(after, Broken) else self._trimmed(after)

    def _knows_more(self, s: Shard) -> bool:
        """Whether the follower has taken, or committed, what ZooKeeper has lost."""
        follower = self._followers.at(s.machine)
        return bool(s.lost) and max(follower.position, follower.known_end) > s.copied

    def _delivered(self, s: Shard, records: tuple[LogRecord, ...]) -> Shard | Broken:
        """The applier takes records, and the follower goes on."""
        after: Shard | Broken = s._replace(records=(*s.records, *records))
        assert isinstance(after, Shard)
        after = self._looked_up(after)
        return after if isinstance(after, Broken) else self._tell(after, Delivered())

    def _looked_up(self, s: Shard) -> Shard | Broken:
        """Unless the catalog is being written, the prefix hears of records and parts."""
        if s.writing or not (s.records or s.arrived):
            return s
        held = frozenset(
            name for (name, _), part in zip(self._parts, s.parts, strict=True) if part >= self._announced
        )
        known = frozenset(tid for entry in s.log if entry.csn <= s.applied for tid in entry.tids)
        events = [RecordRead(one, held, known) for one in s.records]
        return self._stepped(s._replace(records=(), arrived=()), *events, *s.arrived)

    def _prefixed(self, s: Shard, event: PrefixEvent) -> Shard | Broken:
        return self._looked_up(s._replace(arrived=(*s.arrived, event)))

    def _stepped(self, s: Shard, *events: PrefixEvent) -> Shard | Broken:
        try:
            number, said = self._prefixes.step(s.prefix, *events)
        except CorruptError as error:
            return Broken("I10 AGREE", error.message)
        after = s._replace(prefix=number)
        for instruction in said:
            if isinstance(instruction, Apply):
                tids = tuple(tid.tid for one in instruction.records for tid in one.tids)
                last = instruction.records[-1]
                imprint = Imprint(last.stamp.zxid, last.digest)
                after = after._replace(writing=last.csn, batch=tids, written=imprint)
        return after

    def _of_catalog(self, s: Shard) -> Iterator[Next]:
        """The batch becomes durable, or cannot be written."""
        if not s.writing:
            return
        lost = self._lacks(s)
        if lost is None:
            written = self._stepped(made_durable(s), Applied(s.writing))
            yield ("catalog", s.writing), written if isinstance(written, Broken) else self._looked_up(written)
        elif lost in {one.part for one in s.arrived if isinstance(one, PartLost)}:
            failed = self._stepped(not_written(s), PartLost(lost), NotApplied())
            yield ("catalog", s.writing), failed if isinstance(failed, Broken) else self._looked_up(failed)
        else:
            broken = Broken("I9 HONEST", f"claims CSN {s.writing} without a durable part {lost}")
            yield ("catalog", s.writing), broken
        if s.trouble.full:
            after = self._stepped(not_written(less(s, "full")), NotApplied())
            yield ("full", s.writing), after if isinstance(after, Broken) else self._looked_up(after)

    def _lacks(self, s: Shard) -> PartId | None:
        """A part of the batch being written that the disk has not."""
        for (name, tid), part in zip(self._parts, s.parts, strict=True):
            if tid in s.batch and part != DURABLE:
                return name
        return None

    def _ends(self, s: Shard) -> Shard:
        return s._replace(
            machine=-1, prefix=-1, asked=(), paused=False, seen=0, watched=CSN_NONE, records=(), arrived=(),
            writing=CSN_NONE, batch=(), pokes=(), written=UNKNOWN,
        )  # fmt: skip

    def _dies(self, s: Shard) -> Shard:
        parts = tuple(part if part == DURABLE else ABSENT_PART for part in s.parts)
        return self._trimmed(self._ends(less(s, "crash"))._replace(parts=parts))

    def _trimmed(self, s: Shard) -> Shard:
        """Forget the states of ZooKeeper that nobody can read any more."""
        oldest = s.seen if s.machine >= 0 else s.now
        if s.trouble.session or not oldest:
            return s
        return s._replace(history=s.history[oldest:], seen=max(0, s.seen - oldest))

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """Check that all claimed parts are durable here, and that the replica shows exactly the commits."""
        assert isinstance(state, Shard)
        for before, entry in zip(state.log, state.log[1:], strict=False):
            if not self.neighbours(before, entry):
                return Broken("I2 MONOTONE", f"CSN {entry.csn} follows CSN {before.csn} in the log")
        if state.lost:
            return _of_one_history(state)
        csns = {tid: one.csn for one in state.log for tid in one.tids}
        shown: dict[str, set[bool]] = {}
        for (name, tid), part in zip(self._parts, state.parts, strict=True):
            if tid in state.visible and part != DURABLE:
                return Broken("I9 HONEST", f"claims CSN {state.applied} without part {name} of {tid}")
            csn = csns.get(tid) if tid in state.visible else None
            shown.setdefault(tid, set()).add(part != ABSENT_PART and self._is_shown(tid, csn, state.applied))
        for tid, parts in shown.items():
            committed = csns.get(tid, CSN_MAX) <= state.applied
            claim = f"at CSN {state.applied} {tid}"
            if len(parts) > 1:
                return Broken("I3 ATOMIC", f"{claim} is shown in some of its tables only")
            if committed and parts == {False}:
                return Broken("I4 DURABLE", f"{claim} is not shown, although it is committed at {csns[tid]}")
            if not committed and parts == {True}:
                return Broken("I5 NODIRTY", f"{claim} is shown, although it is not committed there")
        return None

    def _is_shown(self, tid: str, created: Csn | None, snapshot: Csn) -> bool:
        """Whether a reader sees a part, by the product's rule."""
        key = (tid, created, snapshot)
        if key not in self._shown:
            self._shown[key] = visible(PartVersions(Tid.parse(tid), created), snapshot)
        return self._shown[key]

    def neighbours(self, earlier: RecordFacts, later: RecordFacts) -> bool:
        """Tell whether one record may follow the other in the log."""
        return follows(earlier, later)

    def unsettled(self, state: State) -> Broken | None:
        """Everything is committed and applied."""
        assert isinstance(state, Shard)
        if (state.struck or state.stopped) and state.machine < 0:
            return None
        if state.applied != state.log[-1].csn:
            end = state.log[-1].csn
            return Broken("I4 DURABLE", f"has applied up to {state.applied}, the log ends at {end}")
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        assert isinstance(state, Shard)
        kind, about = str(move[0]), move[1]
        if kind == "serve":
            assert isinstance(about, int)
            event = self.answer(state, state.asked[0], about)
            return f"{behind(state, about)} answers {short(state.asked[0])}: {short(event)}"
        if kind == "session":
            assert isinstance(about, int)
            return f"a new session, on {behind(state, about)}"
        return _WORDS[kind].format(about=about, asked=short(state.asked[0]) if state.asked else "")


_WORDS: Final = {
    "commit": "transaction {about} is committed",
    "own": "transaction {about} is committed by this replica",
    "poke": "the follower hears of the own commit at {about}",
    "roll": "epoch {about} is closed",
    "tail": "the tail moves to {about}, and the records below are deleted",
    "copy": "ZooKeeper's disks are copied",
    "back": "ZooKeeper is set back to CSN {about}",
    "strike": "the follower is struck: the tail moves to {about}",
    "written": "part {about} is written",
    "durable": "part {about} is fsynced, with its row",
    "damage": "part {about} is found damaged",
    "start": "the follower's process starts",
    "crash": "the follower's process dies",
    "crash, written": "the follower's process dies right behind the write of its catalog",
    "fail": "{asked} fails",
    "resume": "the follower tries again",
    "watch": "the watch fires",
    "tick": "the follower looks again",
    "catalog": "the catalog is written up to CSN {about}",
    "full": "the catalog cannot be written",
}


def _of_one_history(s: Shard) -> Broken | None:
    """Once ZooKeeper was set back: the catalog has a beginning of the log before or after it, never a mix."""
    present = tuple(tid for entry in s.log for tid in entry.tids)
    if s.visible in {s.lost[: len(s.visible)], present[: len(s.visible)]}:
        return None
    return Broken("I10 AGREE", f"shows {s.visible}; the log has {present}, before it was set back {s.lost}")


def _unheard() -> None:
    """Watches are part of the model."""
