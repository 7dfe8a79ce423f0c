"""Records that an operator has had skipped: when that is refused, and what all boots know of it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.support.aio import until
from tests.support.clusters.boots import R1, R2, R3, R9, begin
from tests.support.clusters.log_node import LogNode, make_cluster
from tests.support.zookeeper.store_suite import done, node
from tidelock.csnlog import record_skipper
from tidelock.csnlog.cluster import bootstrap
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, register
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_IMPORT, NO_STAMP, Csn, ReplicaId, Stamp, TableId, Tid, csn
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.log_time import clocking
from tidelock.csnlog.core.model import (
    REMOVED,
    STRUCK,
    DefineTable,
    LabelState,
    Progress,
    Record,
    RecordKind,
    SessionState,
    SkippedRecord,
    TidRecord,
)
from tidelock.csnlog.core.results import Aborted, Ok
from tidelock.csnlog.core.skipped import (
    Facts,
    Member,
    may_hide,
    ops_of,
    passed_over,
    shown_instead,
    why_not,
    word_of,
)
from tidelock.csnlog.core.store import Check, Create, Node, Op, SetData
from tidelock.csnlog.log import LogState
from tidelock.csnlog.record_skipper import read, skip
from tidelock.csnlog.testing.memory_store import (
    MemoryEnsemble,
    MemoryStore,
    RequestFault,
    StoreRequest,
    nth,
)
from tidelock.errors import (
    ClusterMismatchError,
    ConfigError,
    CorruptError,
    FencedError,
    NoSuchCsnError,
    RefusedError,
)

#: A record of a version that is to come.
NEWER: Final = b'{"v":1,"k":"merge","h":"r1","w":7,"t":[{"i":"1-r1-1-7","e":[]},{"i":"1-r1-1-8"}]}'
POISON: Final = csn(0, 2)
TIDS: Final = ("1-r1-1-7", "1-r1-1-8")
BY: Final[dict[str, Any]] = {"by": "ann", "why": "the newer version is gone", "time_ms": 9}


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    """A cluster whose log has a poison record behind its first two."""
    made = MemoryEnsemble()
    store = made.store()
    await make_cluster(store)
    await write(store, NEWER)
    return made


async def write(store: MemoryStore, data: bytes, *more: Op, epoch: int = 0) -> None:
    """Write a record as a commit does."""
    await done(store, Create(tree.record_prefix(epoch), data, sequential=True), *more)


async def word(store: MemoryStore, at: Csn = POISON, *, decodable: bool = False) -> SkippedRecord:
    """Look at a record and skip it, as an operator does."""
    facts = await read(store, at, patience_s=5.0)
    numbers = itertools.count()
    return await skip(
        store,
        at,
        decodable=decodable,
        digest=codec.digest(facts.node.data),
        nonce=lambda: f"{store.name}-{next(numbers)}",
        patience_s=5.0,
        **BY,
    )


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_skipper, "RETRY_S", 0.0)
    monkeypatch.setattr(bootstrap, "_RETRY_S", 0.0)


# ------------------------------------------------------------------------------------------- the pure rules


def said(data: bytes = NEWER, **more: Any) -> SkippedRecord:
    """Return a word about some bytes."""
    return SkippedRecord(csn=POISON, zxid=5, digest=codec.digest(data), **BY, **more)


def facts_of(data: bytes = NEWER, **more: Any) -> Facts:
    """Return what ZooKeeper shows of a record that no replica has applied."""
    empty = Node(b"", 0, 0, 0, NO_STAMP)
    members = tuple(member(replica) for replica in (R1, R2))
    found = Facts(
        csn=POISON, node=Node(data, 0, 0, 0, Stamp(5, 9)), epoch=empty, roster=empty, labels_dir=empty,
        closes=False, members=members, labels={}, definitions=(), word=None, first=True,
    )  # fmt: skip
    return replace(found, **more)


def member(replica: ReplicaId, reached: int = 1, state: str = "serving", told: int = 0) -> Member:
    """Return a member that has applied the log up to a CSN."""
    session = codec.encode_session(SessionState(3, "disk", "", state))
    progress = Progress(Csn(reached), Csn(1), published_max=Csn(told))
    return Member(
        replica, Node(session, 4, 0, 0, NO_STAMP), Node(codec.encode_progress(progress), 6, 0, 0, NO_STAMP)
    )


def record(*tids: TidRecord, kind: RecordKind = RecordKind.COMMIT) -> bytes:
    """Return the bytes of a good record."""
    return codec.encode_record(Record(kind, R1, 7, tids, witnesses=()))


def test_a_skipped_record_is_an_empty_one_with_stamp_and_digest_of_the_real_one() -> None:
    """So histories stay comparable, and its time is that of the CSN before, whatever the clocks say."""
    taken = passed_over(POISON, NEWER, Stamp(5, 1 << 50), said())
    assert (taken.record.kind, taken.record.tids) == (RecordKind.COMMIT, ())
    assert (taken.stamp, taken.digest, taken.skip) == (Stamp(5, 1 << 50), codec.digest(NEWER), said())
    assert clocking(taken.record, 1 << 50).after(1234) == 1234
    closing = passed_over(POISON, NEWER, Stamp(5, 9), said(closes=True))
    assert closing.record.kind is RecordKind.END


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (b'{"v":1,"k":"commit","h":"r1","t":[{"i":"1-r1-3-7","e":[\xff\x00', False),  # damaged
        (NEWER, True),  # of a newer version: each one writes the tid first
        (b"", False),
    ],
)
def test_a_transaction_that_damaged_bytes_may_hide_is_doubtful(data: bytes, whole: bool) -> None:
    """It is one of a boot that the word has fenced, and reads below the record; no other one is."""
    found = word_of(facts_of(data), by="ann", why="damaged", time_ms=9)
    assert codec.decode_skipped(codec.encode_skipped(found)) == found
    for tid, doubtful in (
        ("1-r2-3-7", True),
        ("1-r2-4-1", False),  # a boot after the word
        (f"{POISON}-r2-3-7", False),  # it reads what the record would have written
        ("1-r9-3-7", False),  # of no member
    ):
        assert may_hide(found, Tid.parse(tid)) == (doubtful and not whole), tid
    assert not may_hide(said(), Tid.parse("1-r2-3-7"))  # of an earlier version


def test_another_record_at_the_csn_is_not_skipped() -> None:
    """A ZooKeeper that was set back may hold another one there."""
    with pytest.raises(CorruptError, match="which ann has had skipped, found one with digest"):
        passed_over(POISON, b"{}", Stamp(5, 9), said())


@pytest.mark.parametrize(
    ("applied", "passed", "shown"), [(1, (), None), (2, (), 2), (9, (), 2), (9, (2,), None), (9, (3,), 2)]
)
def test_a_catalog_that_shows_a_skipped_record_is_told_from_one_that_passed_it(
    applied: int, passed: tuple[int, ...], shown: int | None
) -> None:
    """By the records that it has noted, whether the log keeps them or not."""
    assert shown_instead(Csn(applied), {Csn(one) for one in passed}, {POISON: said()}) == shown


REFUSALS: Final = {
    "skipped": (facts_of(word=said()), "it is skipped already: ann"),
    "end": (facts_of(record(kind=RecordKind.END)), "found one of kind end"),
    "genesis": (facts_of(record(kind=RecordKind.GENESIS)), "found one of kind genesis"),
    "applied": (facts_of(members=(member(R1), member(R2, 2))), r"found r2 at CSN 2: .* upgrade or repair"),
    "applied by a struck one": (facts_of(members=(member(R1, 9, STRUCK),)), "found r1 at CSN 9"),
    "applied on a former disk": (facts_of(members=(member(R1, 1, told=2),)), "found r1 at CSN 2"),
    "table": (facts_of(definitions=("tables/d.t",)), r"its commit has written tables/d\.t: .*rebuild"),
    "definition": (
        facts_of(record(TidRecord("1-r1-1-1", (DefineTable(TableId("d.t"), 0, {}),)))),
        "an entry of that kind",
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.parametrize("decodable", [True, False])
def test_a_word_is_refused(why: str, decodable: bool) -> None:
    """Each refusal says what was found, and what to do instead; no flag overrules it."""
    facts, message = REFUSALS[why]
    with pytest.raises(RefusedError, match=message):
        raise RefusedError(why_not(facts, decodable=decodable))


def test_a_record_that_can_be_read_needs_a_second_word() -> None:
    """Its commits were acknowledged, and may be good ones."""
    facts = facts_of(record(TidRecord("1-r1-1-1")))
    assert "add --decodable" in why_not(facts, decodable=False)
    assert not why_not(facts, decodable=True)
    assert not why_not(facts_of(), decodable=False)
    assert not why_not(facts_of(members=(member(R1), member(R2, 9, REMOVED))), decodable=False)


def test_the_transactions_are_read_from_bytes_that_cannot_be_decoded() -> None:
    """As far as they are there: a newer kind, a record cut short, noise."""
    assert facts_of().tids == TIDS
    assert facts_of(NEWER[:65]).tids == TIDS[:1]
    assert facts_of(b"\x00\xff" + b'{"i":"no tid"}').tids == ()
    assert facts_of(record(TidRecord("1-r1-1-1"))).tids == ("1-r1-1-1",)


def test_the_multi_of_a_word_fences_all_members() -> None:
    """It checks all that decided, and spares those that were removed."""
    facts = facts_of(members=(member(R1), member(R2, 9, REMOVED), member(R3, 1, STRUCK)))
    ops = ops_of(facts, word_of(facts, **BY), "n1")
    states = {
        op.path: codec.decode_session(op.data)
        for op in ops
        if isinstance(op, SetData) and op.path.endswith("/session")
    }
    assert states == {
        "replicas/r1/session": SessionState(4, "disk", "n1", "fenced"),
        "replicas/r3/session": SessionState(4, "disk", "n1", STRUCK),
    }
    assert {op.path: op.version for op in ops if isinstance(op, Check)} == {
        tree.record(POISON): 0, tree.EPOCH: 0, tree.progress(R1): 6, tree.progress(R3): 6,
    }  # fmt: skip


# ------------------------------------------------------------------------------------- on a log in memory


async def test_a_poison_record_stops_the_log_and_the_reason_names_the_command(
    ensemble: MemoryEnsemble,
) -> None:
    """Without the operator nobody passes it (I15)."""
    async with LogNode(ensemble.store()) as one:
        await until(lambda: one.log.state is LogState.STOPPED)
        assert "`tidelock admin skip-record 2`" in one.log.reason
        assert one.reached == CSN_IMPORT


async def test_all_logs_pass_over_a_skipped_record(ensemble: MemoryEnsemble) -> None:
    """A log that lives is fenced, one that starts goes on behind it; its transactions have no commit."""
    async with LogNode(ensemble.store(), R2) as before:
        await until(lambda: before.log.state is LogState.STOPPED)
        given = await word(ensemble.store())
        assert given.tids == TIDS
    async with LogNode(ensemble.store(), R1) as one, LogNode(ensemble.store(), R2) as two:
        assert await one.commit(1) == 3
        await until(lambda: two.reached == 3)
        for seen in (one, two):
            [skipped] = [item for item in seen.delivered if item.skip is not None]
            assert (skipped.csn, skipped.record.tids, skipped.skip) == (POISON, (), given)
        tid = replace(one.tid(7), boot=1)
        assert isinstance(await two.outcome(tid), Aborted)
        assert [item.csn for item in await two.log.records(Csn(1), 9)] == [2, 3]


async def test_a_log_that_lives_is_fenced_by_the_word(ensemble: MemoryEnsemble) -> None:
    """Its boot does not know of the word, and would take another history."""
    await ensemble.store().multi((Create(tree.record_prefix(0), record(), sequential=True),))
    async with LogNode(ensemble.store(), R1, position=Csn(3)) as one:
        await word(ensemble.store())
        with pytest.raises(FencedError):
            await one.commit(1)
        await until(lambda: one.log.state is LogState.FENCED)


async def test_a_log_goes_on_from_a_skipped_record(ensemble: MemoryEnsemble) -> None:
    """The record at the position is read again, and is the one that was passed over."""
    await word(ensemble.store())
    async with LogNode(ensemble.store()) as one:
        await until(lambda: one.reached == POISON)
        last = one.delivered[-1]
    async with LogNode(ensemble.store(), R1, position=POISON, last=Imprint.of(last)) as again:
        assert await again.commit(1) == 3


async def test_a_skipped_record_that_closed_its_epoch_still_does(ensemble: MemoryEnsemble) -> None:
    """An END record whose bytes are damaged: the log goes on in the next epoch, not behind the record."""
    store = ensemble.store()
    await write(store, b"noise", Create(tree.epoch_dir(1)), SetData(tree.EPOCH, codec.encode_epoch(1), 0))
    await word(store)
    assert (await word(store, csn(0, 3))).closes
    async with LogNode(ensemble.store()) as one:
        assert await one.commit(1) == csn(1, 0)


async def test_a_record_before_the_end_of_its_epoch_closes_nothing(ensemble: MemoryEnsemble) -> None:
    """Whatever epoch is the present one."""
    store = ensemble.store()
    end = record(kind=RecordKind.END)
    await write(store, end, Create(tree.epoch_dir(1)), SetData(tree.EPOCH, codec.encode_epoch(1), 0))
    assert not (await word(store)).closes
    async with LogNode(ensemble.store()) as one:
        assert await one.commit(1) == csn(1, 0)


async def test_labels_of_a_skipped_record_are_free_again(ensemble: MemoryEnsemble) -> None:
    """A plain one is gone, a stream's is back at the batch before; others stay."""
    store = ensemble.store()
    run, stream, first, other = (tree.label(text) for text in ("run", "stream", "first", "other"))
    await done(store, Create(other, codec.encode_label(LabelState("1-r1-1-1"))))
    await done(store, Create(stream, codec.encode_label(LabelState("1-r1-1-1", 4))))
    moved = codec.encode_label(LabelState("1-r1-1-7", 5))
    made = (LabelState("1-r1-1-7"), LabelState("1-r1-1-8", 0))
    await write(
        store,
        NEWER,
        *(Create(path, codec.encode_label(state)) for path, state in zip((run, first), made, strict=True)),
        SetData(stream, moved, 0),
    )
    before = (await node(store, tree.LABELS)).version
    await word(store, csn(0, 3))
    names = await store.children(tree.LABELS)
    assert isinstance(names, Ok)
    assert {f"{tree.LABELS}/{name}" for name in names.value} == {stream, other}
    assert codec.decode_label((await node(store, stream)).data) == LabelState("1-r1-1-7", 4, progress=True)
    assert (await node(store, tree.LABELS)).version == before + 1


async def test_a_table_that_the_record_made_refuses_the_word(ensemble: MemoryEnsemble) -> None:
    """It is found by the number of its write, though nobody can read the record; nothing is changed."""
    store = ensemble.store()
    await write(store, NEWER, Create(tree.table(TableId("d.t")), b"{}"))
    before = ensemble.tree.state()
    with pytest.raises(RefusedError, match=r"CSN 3 is not skipped: .* has written tables/d\.t"):
        await word(store, csn(0, 3))
    assert ensemble.tree.state() == before


@pytest.mark.parametrize(
    "fault", [RequestFault.REPLY_LOST, RequestFault.REPLY_LOST_EXPIRED, RequestFault.LATE]
)
async def test_a_lost_answer_gives_the_word_once(ensemble: MemoryEnsemble, fault: RequestFault) -> None:
    """The operator is told that the record is skipped, not that it was skipped before."""

    def is_word(request: StoreRequest) -> bool:
        return any(isinstance(op, Create) and op.path == tree.skipped_record(POISON) for op in request.ops)

    ensemble.plan = nth(1, fault, is_word)
    assert (await word(ensemble.store())).by == "ann"
    assert codec.decode_session((await node(ensemble.store(), tree.session(R1))).data).boot == 1
    with pytest.raises(RefusedError, match="it is skipped already: ann"):
        await word(ensemble.store())


async def test_words_about_what_is_not_there(ensemble: MemoryEnsemble) -> None:
    """A CSN beyond the end, a deleted record, another record than the operator saw, an empty root."""
    store = ensemble.store()
    with pytest.raises(NoSuchCsnError, match="check the number"):
        await read(store, Csn(7), patience_s=5.0)
    with pytest.raises(RefusedError, match="expected the record with digest ab, found"):
        await skip(
            store, POISON, decodable=False, digest="ab", nonce=lambda: "n", patience_s=5.0, **BY
        )  # fmt: skip
    await done(store, SetData(tree.TAIL, codec.encode_csn(Csn(9)), 0))
    with pytest.raises(NoSuchCsnError, match="records below CSN 9 are deleted"):
        await read(store, Csn(7), patience_s=5.0)
    with pytest.raises(ConfigError, match="there is no cluster"):
        await read(MemoryEnsemble().store(), POISON, patience_s=5.0)


# ------------------------------------------------------------------------------------------------- starts


async def test_a_catalog_that_has_applied_the_record_does_not_start(ensemble: MemoryEnsemble) -> None:
    """Its tables differ from those of all others; nothing is changed, and the message says what to do."""
    await word(ensemble.store())
    before = await node(ensemble.store(), tree.session(R1))
    with pytest.raises(ClusterMismatchError, match=r"CSN 2, which ann has had skipped .* with an empty one"):
        await begin(ensemble.store(), known=KnownState(last_csn=POISON))
    assert await node(ensemble.store(), tree.session(R1)) == before
    passed = KnownState(last_csn=POISON, passed=frozenset({POISON}))
    assert set((await begin(ensemble.store(), known=passed)).skips) == {POISON}
    assert set((await begin(ensemble.store(), R2, known=KnownState(last_csn=Csn(1)))).skips) == {POISON}


async def test_a_word_that_is_gone_shows_a_zookeeper_that_was_set_back(ensemble: MemoryEnsemble) -> None:
    """A catalog remembers what it has passed over."""
    with pytest.raises(ClusterMismatchError, match="it does not say that the record of CSN 2 is skipped"):
        await begin(ensemble.store(), known=KnownState(last_csn=POISON, passed=frozenset({POISON})))


# ------------------------------------------------------------------- words and starts in every order


class _Between:
    """Runs something once, when another store has had a number of answers."""

    def __init__(
        self, ensemble: MemoryEnsemble, of: str, number: int, run: Callable[[], Awaitable[object]]
    ) -> None:
        self._of, self._number, self._run = of, number, run
        self.acted = False
        self._now = ""
        self._seen = 0
        ensemble.plan, ensemble.turn = self._plan, self._turn

    def _plan(self, request: StoreRequest) -> None:
        self._now = request.store

    async def _turn(self) -> None:
        self._seen += self._now == self._of
        if not self.acted and self._seen == self._number:
            self.acted = True
            await self._run()


async def _fresh() -> MemoryEnsemble:
    ensemble = MemoryEnsemble()
    store = ensemble.store()
    await make_cluster(store)
    await write(store, NEWER)
    return ensemble


async def _knows(ensemble: MemoryEnsemble, own: OwnSession) -> bool:
    """Return whether a boot knows of the word, or is fenced."""
    there = await node(ensemble.store(), tree.session(own.replica))
    return POISON in own.skips or there.version != own.fence


async def _orders(replica: ReplicaId) -> Iterator[bool]:
    """Give the word at each moment of a start, and start at each moment of the word.

    Return for each order whether the boot knows of the word or is fenced.
    """
    found: list[bool] = []
    for inner, number in itertools.product(("word", "start"), range(1, 60)):
        ensemble = await _fresh()
        boots: list[OwnSession] = []

        async def start(ensemble: MemoryEnsemble = ensemble, boots: list[OwnSession] = boots) -> None:
            store = ensemble.store("start")
            if replica == R9:
                await register(store, R9)
            boots.append(await begin(store, replica))

        async def give(ensemble: MemoryEnsemble = ensemble) -> None:
            await word(ensemble.store("word"))

        outer, run, other = ("start", start, give) if inner == "word" else ("word", give, start)
        between = _Between(ensemble, outer, number, other)
        await run()
        if not between.acted:
            continue
        found.append(await _knows(ensemble, boots[0]))
    return iter(found)


@pytest.mark.parametrize("replica", [R1, R9], ids=["known", "registered meanwhile"])
async def test_no_boot_goes_on_without_the_word(replica: ReplicaId) -> None:
    """A boot that has begun before is fenced, and any other one has read it."""
    orders = list(await _orders(replica))
    assert len(orders) > 20
    assert all(orders)


def _without_fences(facts: Facts, given: SkippedRecord, nonce: str) -> tuple[Op, ...]:
    return tuple(op for op in ops_of(facts, given, nonce) if not op.path.endswith("/session"))


def _without_roster(facts: Facts, given: SkippedRecord, nonce: str) -> tuple[Op, ...]:
    return tuple(op for op in ops_of(facts, given, nonce) if op.path != tree.REPLICAS)


@pytest.mark.parametrize(
    ("bug", "replica"), [(_without_fences, R1), (_without_roster, R9)], ids=["no fences", "no roster"]
)
async def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, bug: Callable[..., tuple[Op, ...]], replica: ReplicaId
) -> None:
    """A word that fences nobody, and one that does not notice a replica that was registered meanwhile."""
    monkeypatch.setattr(record_skipper, "ops_of", bug)
    assert not all(await _orders(replica))
