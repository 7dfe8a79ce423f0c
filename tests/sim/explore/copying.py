"""A home gets its transactions copied to peers that crash and lose their disks: what is explored of copies.

The counting of copies and what a peer does with a push are the product's own; disks, processes, messages and
the member list are modelled here. An answer may come when the disk that it speaks of is long gone. The
commit checks the version of the roster at which its copies were counted; disks, strikes and ``copies`` raise
that version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeVar

from tests.sim.explore.acceptors import HOME, Acceptors, part_of, tid_of
from tests.sim.explore.ensemble import Numbered
from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Broken, Move, State
from tidelock.csnlog.core.ids import CSN_NONE, ReplicaId
from tidelock.replication.core.copies import Copies, CopiesState
from tidelock.replication.core.messages import (
    Ack,
    CopiesEvent,
    CountAgain,
    Deadline,
    NotEnough,
    PersistedAtHome,
    Ready,
    RolledBack,
    RulesChanged,
    TransactionDecided,
    TransactionSealed,
)
from tidelock.replication.core.model import CopyPlace, CountingRules, Held

OPEN, SEALED, READY, COMMITTED, REFUSED = range(5)

T = TypeVar("T")

Next = tuple[Move, "CopyHome | Broken"]


class Mishaps(NamedTuple):
    """How often each thing may still happen."""

    #: A push, or the answer to one, is lost.
    lose: int = 0
    #: A peer's process dies; what is not durable is gone.
    crash: int = 0
    #: A peer that is down gets an empty disk.
    replace: int = 0
    #: The commit timeout of a transaction is over.
    deadline: int = 0
    #: The home and its disk are gone for good.
    disaster: int = 0
    #: An operator asks for one copy more.
    need: int = 0
    #: A peer is struck, as far as the rules of strikes allow it.
    strike: int = 0

    def less(self, name: str) -> Mishaps:
        """One less of a kind."""
        return self._replace(**{name: getattr(self, name) - 1})


class CopyPeer(NamedTuple):
    """A peer.

    ``disk`` counts its disks, ``rows`` are the transactions durable on the present one, ``storing`` those
    that are being written. ``shown`` is the disk that its session shows, ``known`` the one that the home has
    seen there.
    """

    up: bool = True
    disk: int = 1
    rows: frozenset[int] = frozenset()
    push: tuple[int, ...] = ()
    storing: tuple[int, ...] = ()
    shown: int = 1
    known: int = 1
    struck: bool = False


class Counted(NamedTuple):
    """The copies that a transaction was counted with: the version of the roster, and the peers."""

    version: int
    peers: frozenset[int]


class CopyHome(NamedTuple):
    """The state of the world of copies."""

    machine: int
    peers: tuple[CopyPeer, ...]
    phases: tuple[int, ...]
    #: Transactions durable on the home's disk; None = the home is gone.
    rows: frozenset[int] | None = frozenset()
    #: Answers under way: (peer, disk, transactions).
    answers: frozenset[tuple[int, int, tuple[str, ...]]] = frozenset()
    #: (peer, disk, transaction) that ever were durable.
    ever: frozenset[tuple[int, int, int]] = frozenset()
    #: For each transaction: the copies that it was found ready with.
    counted: tuple[Counted | None, ...] = ()
    #: For each transaction: how many disks were lost since it was committed. -1: a disk that counted was gone
    #: already, and had no agent that could tell.
    lost: tuple[int, ...] = ()
    #: The version of the roster, that which the home has seen, and the copies that a commit needs.
    version: int = 0
    seen: int = 0
    copies: int = 2
    mishaps: Mishaps = Mishaps()

    def but(self, peer: int, **changes: Any) -> CopyHome:
        """The same with one peer changed."""
        changed = self.peers[peer]._replace(**changes)
        return self._replace(peers=(*self.peers[:peer], changed, *self.peers[peer + 1 :]))

    def less(self, name: str) -> CopyHome:
        """The same with less of a kind of mishap."""
        return self._replace(mishaps=self.mishaps.less(name))


class CopyModel:
    """The model; see the module.

    Args:
        txs: How many transactions the home seals.
        peers: How many peers there are.
        kind: The class that counts copies; a planted bug may give another.
        early: A planted bug: peers answer while the rows are still being written.
        unchecked: A planted bug: the commit does not check the version of the roster.
        lowering: A planted bug: a strike lowers ``copies`` where too few replicas are left.
    """

    faults = frozenset(
        {"lose push", "lose answer", "crash", "replace", "deadline", "disaster", "need", "strike"}
    )
    idle: frozenset[str] = frozenset()
    #: How many copies the cluster was made with.
    copies: Final = 2

    def __init__(
        self,
        replays: Replays,
        txs: int,
        peers: int,
        mishaps: Mishaps,
        *,
        kind: type[Copies] = Copies,
        early: bool = False,
        unchecked: bool = False,
        lowering: bool = False,
    ) -> None:
        self._names = [ReplicaId(f"r{number + 2}") for number in range(peers)]
        self._acceptors, self._early = Acceptors(replays), early
        self._unchecked, self._lowering = unchecked, lowering
        self._first = CopyHome(
            0, (CopyPeer(),) * peers, (OPEN,) * txs, counted=(None,) * txs, lost=(0,) * txs, mishaps=mishaps
        )
        self._kind, self._states = kind, Numbered[CopiesState]()
        self._states.number(kind(HOME, self._rules(self._first)).snapshot())

    def initial(self) -> State:
        """All are up, nothing is sealed."""
        return self._first

    # ---------------------------------------------------------------------------------------------- moves

    def moves(self, state: State) -> Iterator[Next]:
        """All that can happen next."""
        assert isinstance(state, CopyHome)
        for peer, found in enumerate(state.peers):
            yield from self._of_peer(state, peer, found)
        yield from self._of_operators(state)
        for answer in state.answers:
            rest = state._replace(answers=state.answers - {answer})
            if state.rows is not None:
                yield ("answer", *answer), self._acked(rest, *answer)
            if state.mishaps.lose:
                yield ("lose answer", *answer), rest.less("lose")
        if state.rows is not None:
            yield from self._of_home(state, state.rows)
            if state.mishaps.disaster:
                gone = _one_more_lost(state.less("disaster"))._replace(rows=None)
                yield ("disaster",), gone

    def _of_home(self, h: CopyHome, rows: frozenset[int]) -> Iterator[Next]:
        """Yield the steps of the home with its transactions."""
        for tx, phase in enumerate(h.phases):
            tid = tid_of(tx)
            if phase == OPEN:
                sealed = _phase(h, tx, SEALED)
                yield ("seal", tx), self._step(sealed, TransactionSealed(tid, (part_of(tx),)))
            elif tx not in rows and phase == SEALED:
                yield ("persist", tx), self._step(h._replace(rows=rows | {tx}), PersistedAtHome(tid))
            if phase == SEALED and h.mishaps.deadline:
                yield ("deadline", tx), self._step(h.less("deadline"), Deadline(tid))
            if phase == READY:
                yield ("commit", tx), self._commit(h, tx)
        if h.seen != h.version:
            peers = tuple(found._replace(known=found.shown) for found in h.peers)
            learned = h._replace(peers=peers, seen=h.version)
            yield ("learn",), self._step(learned, RulesChanged(self._rules(learned)))
        for peer, found in enumerate(h.peers):
            todo = self._unheld(h, peer)
            if todo and not found.push and not found.storing and not any(one[0] == peer for one in h.answers):
                yield ("push", peer), h.but(peer, push=todo)

    def _commit(self, h: CopyHome, tx: int) -> CopyHome | Broken:
        """The multi of a commit: it is refused where the roster has another version than was counted at."""
        counted, tid = h.counted[tx], tid_of(tx)
        assert counted is not None
        if counted.version != h.version and not self._unchecked:
            again = _phase(h, tx, SEALED)
            return self._step(
                again._replace(counted=_put(h.counted, tx, None)), CountAgain(tid, counted.version)
            )
        late = False
        for peer in counted.peers:
            found = h.peers[peer]
            if found.struck or tx not in found.rows:
                if found.struck or found.disk == found.shown:
                    name = self._names[peer]
                    return Broken("I4 DURABLE", f"{tid} is committed with the copy of {name}, which is gone")
                late = True  # the new disk has no agent yet, so nobody can know
        if 1 + len(counted.peers) < h.copies:
            return Broken("I4 DURABLE", f"{tid} is committed with fewer than {h.copies} copies")
        committed = _phase(h, tx, COMMITTED)._replace(lost=_put(h.lost, tx, -1 if late else 0))
        return self._step(committed, TransactionDecided(tid))

    def _of_operators(self, h: CopyHome) -> Iterator[Next]:
        """Yield what changes the roster beside the disks."""
        left = [number for number, found in enumerate(h.peers) if not found.struck]
        if h.mishaps.need and h.copies <= len(left):
            yield ("need",), h.less("need")._replace(copies=h.copies + 1, version=h.version + 1)
        for peer in left:
            enough = len(left) >= h.copies  # the home, and all that are left but this one
            if h.mishaps.strike and (enough or self._lowering):
                struck = h.less("strike").but(peer, struck=True)
                copies = h.copies if enough else len(left)
                yield ("strike", peer), struck._replace(version=h.version + 1, copies=copies)

    def _rules(self, h: CopyHome) -> CountingRules:
        """Return what the home has read of the member list."""
        places = tuple(
            (name, CopyPlace(_disk(name, found.known), name))
            for name, found in zip(self._names, h.peers, strict=True)
            if not found.struck
        )
        return CountingRules(h.version, h.copies, HOME, places)

    def _unheld(self, h: CopyHome, peer: int) -> tuple[int, ...]:
        """Return the transactions to push to a peer: sealed, undecided, and not confirmed for its disk."""
        name = self._names[peer]
        acks = {str(one.tid): one.acks for one in self._states.values[h.machine].open}
        ack = (name, _disk(name, h.peers[peer].known))
        return tuple(
            tx
            for tx, phase in enumerate(h.phases)
            if phase in {SEALED, READY} and ack not in acks[str(tid_of(tx))]
        )

    def _of_peer(self, h: CopyHome, peer: int, found: CopyPeer) -> Iterator[Next]:
        """Yield the steps of a peer."""
        if found.push:
            if found.up:
                yield ("arrive", peer), self._arrives(h.but(peer, push=()), peer, found)
            else:
                yield ("refuse", peer), h.but(peer, push=())
            if h.mishaps.lose:
                yield ("lose push", peer), h.but(peer, push=()).less("lose")
        if found.storing:
            yield ("stored", peer), self._stored(h, peer, found)
        if found.up:
            for tx in range(len(h.phases)):
                if h.phases[tx] == COMMITTED and tx not in found.rows and self._somewhere(h, tx):
                    yield ("fetch", peer, tx), _durable(h, peer, (tx,))
            if h.mishaps.crash:
                yield ("crash", peer), h.but(peer, up=False, storing=(), push=()).less("crash")
        else:
            version = h.version if found.shown == found.disk else h.version + 1
            yield ("start", peer), h.but(peer, up=True, shown=found.disk)._replace(version=version)
            if h.mishaps.replace:
                replaced = h.but(peer, disk=found.disk + 1, rows=frozenset()).less("replace")
                yield ("replace", peer), _one_more_lost(replaced)

    def _arrives(self, h: CopyHome, peer: int, found: CopyPeer) -> CopyHome:
        """A peer takes a push: it answers at once, or has something to make durable first."""
        held = self._staged(peer, found, found.push, stored=self._early)
        after = h if held is None else _answered(h, peer, found, held)
        return after.but(peer, storing=found.push) if held is None or self._early else after

    def _stored(self, h: CopyHome, peer: int, found: CopyPeer) -> CopyHome:
        after = _durable(h, peer, found.storing).but(peer, storing=())
        if self._early:
            return after
        held = self._staged(peer, found, found.storing, stored=True)
        assert held is not None
        return _answered(after, peer, found, held)

    def _staged(self, peer: int, found: CopyPeer, txs: tuple[int, ...], *, stored: bool) -> Held | None:
        name = self._names[peer]
        return self._acceptors.stage(name, _disk(name, found.disk), found.rows, txs, stored=stored)

    # --------------------------------------------------------------------------------------------- the home

    def _acked(self, h: CopyHome, peer: int, disk: int, tids: tuple[str, ...]) -> CopyHome | Broken:
        name = self._names[peer]
        return self._step(h, Ack(Held(name, _disk(name, disk), 1, CSN_NONE, tids)))

    def _step(self, h: CopyHome, event: CopiesEvent) -> CopyHome | Broken:
        """Give the machine an event; what is ready may be committed, what is short is rolled back."""
        machine = self._kind(HOME, CountingRules(0, self.copies, HOME))
        machine.restore(self._states.values[h.machine])
        said = list(machine.step(event))
        for one in said:
            if isinstance(one, NotEnough):
                machine.step(RolledBack(one.tid))
        h = h._replace(machine=self._states.number(machine.snapshot()))
        for one in said:
            tx = one.tid.counter - 1
            if isinstance(one, NotEnough):
                h = _phase(h, tx, REFUSED)
            elif broken := self._holds(h, tx, one):
                return broken
            else:
                peers = frozenset(self._names.index(name) for name in one.copies.holders if name != HOME)
                counted = _put(h.counted, tx, Counted(one.copies.version, peers))
                h = _phase(h, tx, READY)._replace(counted=counted)
        return h

    def _holds(self, h: CopyHome, tx: int, ready: Ready) -> Broken | None:
        """Check that each counted copy is durable on the disk that the member list showed to the home."""
        for holder in ready.copies.holders:
            if holder == HOME:
                there = h.rows is not None and tx in h.rows
            else:
                peer = self._names.index(holder)
                found = h.peers[peer]
                cannot_know = found.known != found.disk and (peer, found.known, tx) in h.ever
                there = tx in found.rows or cannot_know
            if not there:
                return Broken(
                    "I4 DURABLE", f"{ready.tid} counts a copy on {holder}, whose disk does not have it"
                )
        return None

    def _somewhere(self, h: CopyHome, tx: int) -> bool:
        """Tell whether any disk that is left has a transaction."""
        return (h.rows is not None and tx in h.rows) or any(tx in found.rows for found in h.peers)

    # ------------------------------------------------------------------------------------------- promises

    def check(self, state: State) -> Broken | None:
        """A committed transaction outlives the loss of any ``copies - 1`` disks."""
        assert isinstance(state, CopyHome)
        for tx, phase in enumerate(state.phases):
            survives = 0 <= state.lost[tx] < self.copies
            if phase == COMMITTED and survives and not self._somewhere(state, tx):
                return Broken("I4 DURABLE", f"{tid_of(tx)} is committed, and no disk has it any more")
        return None

    def unsettled(self, state: State) -> Broken | None:
        """Every transaction is decided, and every peer has what is committed."""
        assert isinstance(state, CopyHome)
        for tx, phase in enumerate(state.phases):
            if state.rows is not None and phase not in {COMMITTED, REFUSED}:
                return Broken("I8 DECIDED", f"{tid_of(tx)} is never decided")
            lacking = [
                self._names[peer]
                for peer, one in enumerate(state.peers)
                if tx not in one.rows and not one.struck
            ]
            if phase == COMMITTED and lacking and self._somewhere(state, tx):
                return Broken("I14 LIVE", f"{tid_of(tx)} is committed, and {lacking} never get it")
        return None

    def describe(self, state: State, move: Move) -> str:
        """A move in words."""
        assert isinstance(state, CopyHome)
        kind, *about = move
        text = _WORDS[str(kind)]
        if kind in {"seal", "persist", "deadline", "commit"}:
            return text.format(tid=tid_of(int(str(about[0]))))
        if not about:
            return text
        peer = int(str(about[0]))
        name, found = self._names[peer], state.peers[peer]
        disk = _disk(name, int(str(about[1]))) if "answer" in str(kind) else _disk(name, found.disk)
        return text.format(peer=name, disk=disk, tid=tid_of(int(str(about[1]))) if kind == "fetch" else "")


_WORDS: Final = {
    "seal": "{tid} is sealed",
    "persist": "{tid} is durable at its home",
    "deadline": "the commit timeout of {tid} is over",
    "commit": "{tid} is committed",
    "push": "the home pushes to {peer}",
    "arrive": "{peer} takes the push",
    "refuse": "{peer} is down, the push fails",
    "lose push": "the push to {peer} is lost",
    "stored": "{peer} has made file and row durable on {disk}",
    "answer": "the home gets the answer of {peer}, of {disk}",
    "lose answer": "the answer of {peer} is lost",
    "crash": "{peer} dies; what was not durable on {disk} is gone",
    "replace": "{disk} is replaced by an empty one",
    "start": "{peer} starts with {disk}, and the member list shows it",
    "learn": "the home sees the newest member list",
    "need": "an operator asks for one copy more",
    "strike": "{peer} is struck",
    "fetch": "{peer} fetches {tid}",
    "disaster": "the home and its disk are gone",
}


def _disk(name: ReplicaId, number: int) -> str:
    return f"disk {number} of {name}"


def _phase(h: CopyHome, tx: int, phase: int) -> CopyHome:
    return h._replace(phases=(*h.phases[:tx], phase, *h.phases[tx + 1 :]))


def _put(values: tuple[T, ...], tx: int, value: T) -> tuple[T, ...]:
    return (*values[:tx], value, *values[tx + 1 :])


def _durable(h: CopyHome, peer: int, txs: tuple[int, ...]) -> CopyHome:
    found = h.peers[peer]
    after = h.but(peer, rows=found.rows | set(txs))
    return after._replace(ever=after.ever | {(peer, found.disk, tx) for tx in txs})


def _answered(h: CopyHome, peer: int, found: CopyPeer, held: Held) -> CopyHome:
    return h._replace(answers=h.answers | {(peer, found.disk, held.held)})


def _one_more_lost(h: CopyHome) -> CopyHome:
    after = [
        lost + 1 if lost >= 0 and phase == COMMITTED else lost
        for lost, phase in zip(h.lost, h.phases, strict=True)
    ]
    return h._replace(lost=tuple(after))
