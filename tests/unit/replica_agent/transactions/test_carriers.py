"""Carriers: who shares parts with whom, and what each rider hears after every end of its carrier."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid
from tidelock.csnlog.core.model import TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    CommitUnknownError,
    LabelExistsError,
    NotEnoughReplicasError,
    TableChangedError,
    TidelockError,
    TooLargeError,
    TransactionClosedError,
    UnavailableError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.row_streams import CheckedRows
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.ending.carriers import _ENDED_PER_TURN, Carriers, Rider, grouped
from tidelock.replica_agent.transactions.ending.commit_batching import GroupCommitGate
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState

R1 = ReplicaId("r1")
SCHEMA = pa.schema([("k", pa.int64())])
ROWS = pa.RecordBatch.from_pydict({"k": [1, 2, 3]}, schema=SCHEMA)
DONE = Committed(Csn(9), 1)

#: The end of a settlement: a commit, or an error that is made of the tid.
Scripted = Committed | Callable[[Tid], Exception]


class World:
    """The parts beside a carrier; settlements end as the test says, all later ones like the last of these."""

    def __init__(self, *ends: Scripted, found: Committed | None = None, **changed: Any) -> None:
        self.settings = settings(**changed)
        self.transactions = Transactions(R1, 1, self.settings, time.monotonic)
        self.ends, self.found = list(ends), found
        self.settled: list[tuple[str, list[str]]] = []
        self.encoded: list[tuple[str, list[str]]] = []
        self.during: Callable[[], None] = lambda: None
        world = cast("Any", self)
        self.carriers = Carriers(
            settings=self.settings, transactions=self.transactions, staging=world, settlement=world,
            closer=world, gate=GroupCommitGate(1.0), reached=lambda: Csn(5),
        )  # fmt: skip

    def rider(self, *, label: str | None = None, version: int = 0) -> Transaction:
        """A sealed transaction with three rows in the table t."""
        tid = self.transactions.reserve(Csn(5), 1)
        tx = self.transactions.begin_reserved(tid, Csn(5), label=label)
        return filled(self.transactions, tx, version)

    async def commit(self, *txs: Transaction) -> list[Committed | BaseException]:
        """Commit transactions at once."""
        until = time.monotonic() + 10
        return await asyncio.gather(*(self.carriers.settle(tx, until) for tx in txs), return_exceptions=True)

    async def encode(self, tx: Transaction, owners: Sequence[Transaction]) -> None:
        """Encode rows (`RowStaging`)."""
        self.encoded.append((str(tx.tid), [str(one.tid) for one in owners]))

    async def settle(self, tx: Transaction, deadline: float, riders: Sequence[TidRecord] = ()) -> Committed:
        """Settle a transaction (`Settlement`)."""
        del deadline
        self.settled.append((str(tx.tid), [one.tid for one in riders]))
        self.during()
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Committed):
            return end
        raise end(tx.tid)

    async def find_out(self, tx: Transaction) -> Committed | None:
        """Return whether a transaction is committed (`Settlement`)."""
        del tx
        return self.found

    async def commit_closed(self, tx: Transaction, done: Committed) -> None:
        """Close a committed transaction (`TransactionCloser.commit`)."""
        self.transactions.close(tx, TxState.COMMITTED, outcome=done)

    async def roll_back(self, tx: Transaction, error: TidelockError | None, *, pushed: bool) -> None:
        """Close a transaction (`TransactionCloser`)."""
        assert pushed
        self.transactions.close(tx, TxState.ROLLED_BACK, error=error)


class _Closer:
    """The closer of a world, whose `commit` has another meaning there."""

    def __init__(self, world: World) -> None:
        self.commit, self.roll_back = world.commit_closed, world.roll_back


def world(*ends: Scripted, **more: Any) -> World:
    """A world with these ends."""
    made = World(*ends, **more)
    made.carriers.closer = cast("Any", _Closer(made))
    return made


def filled(transactions: Transactions, tx: Transaction, version: int = 0) -> Transaction:
    """Give rows to a transaction, and seal it."""
    schema = TableSchema.from_request("t", SCHEMA)
    tx.use(schema.id, version)
    transactions.keep(tx, CheckedRows(schema, version, ROWS.num_rows, ROWS.nbytes, {"": [ROWS]}))
    tx.ending.seal()
    return tx


def names(*txs: Transaction) -> list[str]:
    """Their tids."""
    return [str(tx.tid) for tx in txs]


async def test_transactions_that_depart_together_share_a_carrier() -> None:
    """One settlement decides all; the carrier is closed, and has the rows of each."""
    at = world(DONE)
    txs = [at.rider(label=f"label {n}") for n in range(3)]
    assert await at.commit(*txs) == [DONE] * 3
    ((carrier, riders),) = at.settled
    assert riders == names(*txs)
    assert at.encoded == [(carrier, riders)]
    assert at.transactions.find(carrier).state is TxState.COMMITTED
    assert [tx.ending.carrier for tx in txs] == [None] * 3
    assert [tx.staged.totals for tx in txs] == [(3, 1, 0)] * 3


async def test_a_crowd_hears_of_its_commit_in_turns() -> None:
    """All hear it, and other work of the loop goes on in between."""
    at = world(DONE)
    ended = 0

    async def commit(tx: Transaction) -> None:
        nonlocal ended
        assert await at.commit(tx) == [DONE]
        ended += 1

    crowd = [asyncio.create_task(commit(at.rider())) for _ in range(3 * _ENDED_PER_TURN + 1)]
    most = seen = 0
    while ended < len(crowd):
        await asyncio.sleep(0)
        most, seen = max(most, ended - seen), ended
    assert most == _ENDED_PER_TURN
    assert len(at.settled) == 1


async def test_one_transaction_needs_no_carrier() -> None:
    """It has parts of its own, as a transaction of several requests."""
    at = world(DONE)
    tx = at.rider()
    assert await at.commit(tx) == [DONE]
    assert at.settled == [(str(tx.tid), [])]
    assert at.encoded == [(str(tx.tid), names(tx))]


@pytest.mark.parametrize("kind", [LabelExistsError, TableChangedError])
async def test_whom_a_refusal_concerns_goes_on_alone(kind: type[TidelockError]) -> None:
    """The others go on with another carrier; the first one is rolled back."""
    txs: list[Transaction] = []
    at = world(lambda tid: kind("in the way", tid=str(tid), riders=names(txs[1])), DONE)
    txs += [at.rider() for _ in range(3)]
    assert await at.commit(*txs) == [DONE] * 3
    (first, _), *later = at.settled
    assert at.transactions.find(first).state is TxState.ROLLED_BACK
    assert sorted(riders for _, riders in later) == [[], names(txs[0], txs[2])]
    (second,) = [tid for tid, riders in later if riders]
    assert second != first
    assert (str(txs[1].tid), []) in later


async def test_parts_that_would_be_too_large_are_not_shared() -> None:
    """Each transaction goes on alone."""
    at = world(lambda _: TooLargeError("a record", limit="record_bytes_max"), DONE)
    txs = [at.rider() for _ in range(3)]
    assert await at.commit(*txs) == [DONE] * 3
    assert sorted(at.settled[1:]) == sorted((tid, []) for tid in names(*txs))


async def test_a_refusal_that_concerns_all_is_told_to_each() -> None:
    """Each hears it as its own: with its tid, and without a carrier that it does not know."""
    at = world(lambda tid: NotEnoughReplicasError(f"{tid} got 1 of 2", tid=str(tid), have=1, riders=[]))
    txs = [at.rider() for _ in range(2)]
    for tx, error in zip(txs, await at.commit(*txs), strict=True):
        assert isinstance(error, NotEnoughReplicasError)
        assert error.message == f"{tx.tid} got 1 of 2"
        assert error.details == {"tid": str(tx.tid), "have": 1}
    assert len(at.settled) == 1


async def test_a_rider_that_is_called_off_leaves_its_carrier() -> None:
    """It is not committed; the others go on with another carrier."""
    at = world(lambda tid: UnavailableError("called off", tid=str(tid)), DONE)
    txs = [at.rider() for _ in range(3)]
    at.during = txs[0].ending.call_off
    ended = await at.commit(*txs)
    assert isinstance(ended[0], TransactionClosedError)
    assert ended[1:] == [DONE] * 2
    assert [riders for _, riders in at.settled] == [names(*txs), names(*txs[1:])]


async def test_what_is_called_off_before_it_departs_is_not_carried() -> None:
    """The other one goes alone."""
    at = world(DONE)
    txs = [at.rider() for _ in range(2)]
    txs[0].ending.call_off()
    ended = await at.commit(*txs)
    assert isinstance(ended[0], TransactionClosedError)
    assert at.settled == [(str(txs[1].tid), [])]


async def test_a_doubt_about_a_carrier_is_one_about_each_rider() -> None:
    """None goes on: this boot learns no more."""
    at = world(lambda tid: CommitUnknownError(f"{tid} was sent", tid=str(tid)))
    txs = [at.rider() for _ in range(2)]
    for tx, error in zip(txs, await at.commit(*txs), strict=True):
        assert isinstance(error, CommitUnknownError)
        assert error.tid == str(tx.tid)
    assert len(at.settled) == 1


@pytest.mark.parametrize("found", [None, DONE])
async def test_after_an_unforeseen_error_the_log_decides(found: Committed | None) -> None:
    """Each rider is committed with its carrier, or hears the error."""
    at = world(lambda _: ValueError("a bug"), found=found)
    txs = [at.rider() for _ in range(2)]
    ended = await at.commit(*txs)
    if found is None:
        assert all(isinstance(error, ValueError) for error in ended)
    else:
        assert ended == [DONE] * 2


async def test_without_room_for_a_carrier_each_goes_alone() -> None:
    """transactions_max counts it as any other transaction."""
    at = world(DONE, transactions_max=2)
    txs = [at.rider() for _ in range(2)]
    assert await at.commit(*txs) == [DONE] * 2
    assert sorted(at.settled) == sorted((tid, []) for tid in names(*txs))


def sizes(txs: Sequence[Transaction], limits: AgentSettings) -> list[int]:
    """The numbers of transactions in the groups that they make."""
    riders = [Rider(tx, 1.0, cast("Any", None)) for tx in txs]
    return [len(group) for group in grouped(riders, limits)]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [5]),
        ({"shared_parts_bytes_max": 2 * ROWS.nbytes}, [2, 2, 1]),
        ({"shared_parts_bytes_max": 1}, [1] * 5),
        ({"batch_tids_max": 4}, [3, 2]),
        ({"batch_tids_max": 2}, [1] * 5),
        ({"record_bytes_max": 1024, "inline_entries_bytes_max": 512}, [4, 1]),
    ],
)
def test_a_carrier_takes_what_its_limits_allow(changed: dict[str, int], expected: list[int]) -> None:
    """Rows in memory, entries of a record, and their bytes, of which half a record is left to its parts."""
    at = world(DONE)
    txs = [at.rider() for _ in range(5)]
    assert sizes(txs, settings(**changed)) == expected


def test_what_contradicts_each_other_is_not_carried_together() -> None:
    """Two commits under a label, and two versions of a table."""
    at = world(DONE)
    labelled = [at.rider(label="a"), at.rider(), at.rider(label="a")]
    assert sizes(labelled, at.settings) == [2, 1]
    versions = [at.rider(version=0), at.rider(version=1), at.rider(version=1)]
    assert sizes(versions, at.settings) == [1, 2]


def test_a_rider_says_what_it_has_in_each_table() -> None:
    """Its entry in the record names its carrier and its rows."""
    at = world(DONE)
    tx = at.transactions.begin_reserved(at.transactions.reserve(Csn(5), 1), Csn(5), meta={"job": 1})
    schema = TableSchema.from_request("t", SCHEMA)
    for _ in range(2):
        at.transactions.keep(tx, CheckedRows(schema, 0, ROWS.num_rows, ROWS.nbytes, {"": [ROWS]}))
    record = Rider(tx, 1.0, cast("Any", None)).record("5-r1-1-99")
    assert record == TidRecord(
        str(tx.tid), carrier="5-r1-1-99", rows={TableId("default.t"): 6}, meta={"job": 1}
    )
    assert at.transactions.memory_bytes == 2 * ROWS.nbytes
