"""The states of an agent, the waiters for CSNs, and the registry of transactions."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId
from tidelock.csnlog.core.results import Committed
from tidelock.errors import (
    BadRequestError,
    LeaseExpiredError,
    StandbyError,
    TransactionClosedError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.config.documentation import markdown
from tidelock.replica_agent.config.loading import load
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.config.states import ALLOWED, AgentAction, AgentState, Condition, require
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Isolation, TxState
from tidelock.replication.core.model import PartMeta

ROOT = Path(__file__).resolve().parents[4]


def test_the_state_table_of_the_documentation_is_that_of_the_code() -> None:
    """docs/protocol.md#agent-states says for each state and action what state.py says."""
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8").split("## 6.")[1].split("## 7.")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    actions = [AgentAction(name) for name in rows[0][1:]]
    assert set(actions) == set(AgentAction)
    shown = {
        row[0]: frozenset(action for action, cell in zip(actions, row[1:], strict=True) if cell == "yes")
        for row in rows[2:]
    }
    assert shown.pop("struck") == frozenset()  # no agent is in it: a struck replica clones when it starts
    assert shown == {state.value: allowed for state, allowed in ALLOWED.items()}


def test_the_configuration_reference_is_that_of_the_code() -> None:
    """docs/configuration.md is what the generator writes."""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == markdown()


def test_a_refused_read_sends_the_reader_elsewhere() -> None:
    """Reads are answered "standby", everything else "unavailable"; both name the state."""
    require(AgentState.SERVING, AgentAction.BEGIN, "r1")
    with pytest.raises(StandbyError, match="fenced"):
        require(AgentState.FENCED, AgentAction.READ, "r1")
    with pytest.raises(UnavailableError, match="suspended"):
        require(AgentState.SUSPENDED, AgentAction.BEGIN, "r1")


@pytest.mark.parametrize("state", [state for state in ALLOWED if AgentAction.READ in ALLOWED[state]])
def test_a_clone_whose_parts_are_missing_answers_no_reads_in_any_state(state: AgentState) -> None:
    """It was asked to read while it was suspended, and listed parts that lay nowhere (seed 1927072614)."""
    condition = Condition("r1", state)
    condition.require(AgentAction.READ)
    condition.incomplete = True
    with pytest.raises(StandbyError, match="not all here"):
        condition.require(AgentAction.READ)


async def test_waiters_wake_when_their_csn_is_reached() -> None:
    """A waiter wakes at its CSN and not before, and gives up after its time."""
    waiters = CsnWaiters(Csn(3))
    assert await waiters.wait(Csn(3), 0.0)
    five, seven = (asyncio.create_task(waiters.wait(Csn(n), 30)) for n in (5, 7))
    await asyncio.sleep(0)
    waiters.advance(Csn(6))
    assert await five
    assert not seven.done()
    waiters.advance(Csn(4))
    assert waiters.reached == 6
    waiters.advance(Csn(8))
    assert await seven
    assert not await waiters.wait(Csn(9), 0.01)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock that is set by hand."""
    return Clock()


@pytest.fixture
def transactions(tmp_path: Path, clock: Clock) -> Transactions:
    """An empty registry with small limits."""
    settings = AgentSettings(
        replica="r1",
        data_dir=tmp_path,
        zk="unused",
        lease_s=10,
        lease_max_s=20,
        transactions_max=3,
        closed_kept_s=5,
    )
    return Transactions(ReplicaId("r1"), 4, settings, clock)


def test_a_lease_ends_without_a_sign_of_life(transactions: Transactions, clock: Clock) -> None:
    """Touching a transaction begins its lease again; silence for its length makes it expire."""
    tx = transactions.begin(Csn(7))
    assert str(tx.tid) == "7-r1-4-1"
    clock.now += 9
    transactions.touch(tx)
    clock.now += 9
    assert transactions.expired(Csn(7)) == []
    clock.now += 2
    assert transactions.expired(Csn(7)) == [tx]
    error = LeaseExpiredError("gone")
    transactions.close(tx, TxState.ROLLED_BACK, error=error)
    with pytest.raises(LeaseExpiredError):
        transactions.require_open(tx)


def test_a_sealed_transaction_has_no_lease_any_more(transactions: Transactions, clock: Clock) -> None:
    """Once the commit was requested, only the commit decides."""
    tx = transactions.begin(Csn(7))
    tx.ending.seal()
    clock.now += 1000
    assert transactions.expired(Csn(7)) == []


def test_limits_are_named_by_their_settings(transactions: Transactions) -> None:
    """Too long a lease and too many transactions are refused with the setting's name."""
    with pytest.raises(BadRequestError, match="lease_max_s"):
        transactions.begin(Csn(1), lease_s=21)
    for _ in range(3):
        transactions.begin(Csn(1))
    with pytest.raises(UnavailableError, match="transactions_max"):
        transactions.begin(Csn(1))


def test_a_key_stands_for_one_transaction(transactions: Transactions, clock: Clock) -> None:
    """A repeated begin returns the same transaction while it is open, then its end, and at last a new one."""
    tx = transactions.begin(Csn(1), key="k", label="q", batch=7)
    clock.now += 9
    assert transactions.begin(Csn(2), key="k", label="q", batch=7) is tx
    assert tx.lease.until == clock.now + 10
    assert transactions.open_by("k")
    with pytest.raises(BadRequestError, match="batch 7"):
        transactions.begin(Csn(2), key="k", label="q", batch=8)
    with pytest.raises(BadRequestError, match="isolation snapshot"):
        transactions.begin(Csn(2), key="k", label="q", batch=7, isolation=Isolation.SERIALIZABLE)
    assert transactions.begin(Csn(2), key="l", label="q", batch=7) is not tx
    transactions.close(tx, TxState.ROLLED_BACK)
    assert not transactions.open_by("k")
    with pytest.raises(TransactionClosedError, match="rolled_back"):
        transactions.begin(Csn(2), key="k", label="q", batch=7)
    clock.now += 6
    transactions.expired(Csn(2))
    assert transactions.begin(Csn(2), key="k", label="q", batch=7).tid != tx.tid


def test_a_key_whose_transaction_has_taken_its_label_late(transactions: Transactions) -> None:
    """A begin with its key is answered that it is sealed, not that the key had another label."""
    tx = transactions.begin(Csn(1), key="k")
    tx.take_label("late", 1)
    tx.ending.seal()
    with pytest.raises(TransactionClosedError, match="sealed"):
        transactions.begin(Csn(1), key="k")


def test_a_failed_transaction_takes_rollback_only(transactions: Transactions) -> None:
    """After a refused statement every statement is refused, saying why and what to do."""
    tx = transactions.begin(Csn(1))
    tx.ending.fail(BadRequestError("column x is missing"))
    with pytest.raises(TransactionClosedError, match="column x is missing; roll it back"):
        transactions.require_open(tx)


def test_a_closed_transaction_is_remembered_for_its_time(transactions: Transactions, clock: Clock) -> None:
    """It answers by its own state for closed_kept_s, then only the catalog knows it.

    Its memory is given back at once.
    """
    tx = transactions.begin(Csn(1))
    meta = PartMeta(PartId("r1-4-1"), TableId("default.t"), "", 1, 100, "0" * 32)
    transactions.add(tx, StagedBytes(meta, b"x" * 100, tx.tid))
    assert transactions.memory_bytes == 100
    tx.ending.seal()
    transactions.close(tx, TxState.COMMITTED, outcome=Committed(Csn(9)))
    assert (transactions.memory_bytes, transactions.live()) == (0, [])
    assert transactions.find(str(tx.tid)).ending.outcome == Committed(Csn(9))
    clock.now += 6
    transactions.expired(Csn(9))
    with pytest.raises(UnknownTransactionError):
        transactions.find(str(tx.tid))


def test_a_commit_is_remembered_until_it_is_applied(transactions: Transactions, clock: Clock) -> None:
    """The catalog of a home that is held up does not know it yet: forgotten, it would pass for aborted."""
    tx = transactions.begin(Csn(1))
    tx.ending.seal()
    transactions.close(tx, TxState.COMMITTED, outcome=Committed(Csn(9)))
    clock.now += 1000
    transactions.expired(Csn(8))
    assert transactions.find(str(tx.tid)).ending.outcome == Committed(Csn(9))
    transactions.expired(Csn(9))
    with pytest.raises(UnknownTransactionError):
        transactions.find(str(tx.tid))


def test_the_oldest_snapshot_in_use_is_that_of_a_live_transaction(transactions: Transactions) -> None:
    """Live transactions hold it back, closed ones do not, and it is never empty."""
    assert transactions.oldest_snapshot(Csn(8)) == 8
    old = transactions.begin(Csn(3))
    transactions.begin(Csn(5))
    assert transactions.oldest_snapshot(Csn(8)) == 3
    transactions.close(old, TxState.ROLLED_BACK)
    assert transactions.oldest_snapshot(Csn(8)) == 5


def test_compaction_heeds_who_has_been_open_for_long(transactions: Transactions, clock: Clock) -> None:
    """While it takes statements, keeps its snapshot and is no compaction itself."""
    old, _ = transactions.begin(Csn(5)), transactions.begin(Csn(3), isolation=Isolation.READ_COMMITTED)
    clock.now += 2
    young = transactions.begin(Csn(4), isolation=Isolation.SERIALIZABLE)
    assert transactions.long_snapshots() == [5]
    clock.now += 2
    assert transactions.long_snapshots() == [4, 5]
    transactions.close(old, TxState.ROLLED_BACK)
    transactions.begin(Csn(6), data_change=False)
    young.ending.seal()
    clock.now += 2
    assert transactions.long_snapshots() == []


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--replica", "R1"], "replica id 'R1'"),
        (["--nope", "1"], "nope"),
        (["--bind", "0.0.0.0"], "shared secret"),
        (["--bootstrap", "r2,r3"], "does not name this replica"),
        (["--bootstrap", "r1,r2", "--copies", "3"], "copies=3"),
        (["--bootstrap", "r1,r2", "--copies", "1"], "single replica"),
        (["--read-ahead", "65"], "read_ahead"),
        (["--config", "missing.toml"], "does not exist"),
    ],
)
def test_wrong_settings_are_named(flags: list[str], found: str) -> None:
    """Each wrong setting gives one message that names it and how to see all settings."""
    from tidelock.errors import ConfigError  # noqa: PLC0415 - used here only

    given = ["--replica", "r1", "--data-dir", "d", "--zk", "h:1/x", *flags]
    with pytest.raises(ConfigError, match=re.escape(found)):
        load(given)


def test_flags_beat_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three sources are read in the order of their strength."""
    file = tmp_path / "agent.toml"
    file.write_text('replica = "r1"\nzk = "file:1/x"\nrack = "file"\nadvertise = "file"\n', encoding="utf-8")
    monkeypatch.setenv("TIDELOCK_RACK", "environment")
    monkeypatch.setenv("TIDELOCK_ADVERTISE", "environment")
    settings = load(["--config", str(file), "--data-dir", str(tmp_path), "--advertise", "flag", "--insecure"])
    assert (settings.zk, settings.rack, settings.advertise, settings.insecure) == (
        "file:1/x",
        "environment",
        "flag",
        True,
    )


async def test_waiters_that_gave_up_are_forgotten() -> None:
    """A stuck replica gets requests for the same CSN again and again; that takes no memory."""
    waiters = CsnWaiters(Csn(3))
    patient = asyncio.create_task(waiters.wait(Csn(5), 30))
    for _ in range(50):
        assert not await waiters.wait(Csn(4), 0.0)
    assert len(waiters._heap) <= 3
    waiters.advance(Csn(5))
    assert await patient
