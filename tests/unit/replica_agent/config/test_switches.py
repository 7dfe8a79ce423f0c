"""The switches of a running agent: their names and values, and what each of them stops."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import BadRequestError, LeaseExpiredError, TidelockError, TransactionAgeError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.switches import Switches
from tidelock.replica_agent.lifecycle.background import BackgroundTasks
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.transaction import Transaction, TxState


def made(**given: Any) -> Switches:
    """Return the switches of an agent with these settings."""
    return Switches.of(settings(**given))


def test_switches_begin_as_the_configuration_says() -> None:
    """The value of the configuration stays beside the present one: a restart restores it."""
    switches = made(compaction=False, lock_wait_s=2.5, log_level="warning")
    assert [tuple(shown) for shown in switches.shown()] == [
        ("collection", "on", "on"),
        ("compaction", "off", "off"),
        ("lease_sweep", "on", "on"),
        ("lock_wait_s", "2.5", "2.5"),
        ("log_level", "warning", "warning"),
    ]
    with capture_logs() as logs:
        switches.set("compaction", "on")
        switches.set("lock_wait_s", "30")
    assert (switches.compaction, switches.lock_wait_s) == (True, 30.0)
    assert [tuple(shown) for shown in switches.shown()][1] == ("compaction", "on", "off")
    assert [(line["switch"], line["before"], line["now"]) for line in logs] == [
        ("compaction", "off", "on"),
        ("lock_wait_s", "2.5", "30"),
    ]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("compactoin", "off", "the switches are collection, compaction, lease_sweep, lock_wait_s, log_level"),
        ("_configured", "off", "there is no switch"),
        ("compaction", "false", "takes on or off; found 'false'"),
        ("lock_wait_s", "-1", "a number of seconds, 0 or above"),
        ("lock_wait_s", "inf", "a number of seconds, 0 or above"),
        ("lock_wait_s", "soon", "a number of seconds, 0 or above"),
        ("log_level", "loud", "one of debug, info, warning, error"),
    ],
)
def test_an_unknown_switch_or_value_is_refused_with_the_list(name: str, value: str, said: str) -> None:
    """A mistyped name changes nothing, and the message says which names there are."""
    switches = made()
    before = switches.shown()
    with pytest.raises(BadRequestError, match=said):
        switches.set(name, value)
    assert switches.shown() == before


def test_the_log_level_changes_for_every_logger() -> None:
    """Loggers that were used before follow, those of libraries too."""
    script = """
        import logging, structlog
        from tidelock.replica_agent.config.logs import configure, set_level

        configure("r1", "warning", "json")
        own, other = structlog.get_logger("agent"), logging.getLogger("kazoo")
        for level in ("warning", "debug", "error"):
            set_level(level)
            own.debug("own debug")
            own.warning("own warning")
            other.info("other info")
            try:
                raise ValueError
            except ValueError:
                own.exception("own exception")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [
        *("own warning", "own exception"),
        *("own debug", "own warning", "other info", "own exception"),
        "own exception",
    ]


class Endings:
    """The background tasks of a home that end transactions, without all others."""

    def __init__(self, **given: Any) -> None:
        self.now_s, limits = 1000.0, settings(**given)
        self.transactions = Transactions(ReplicaId("r1"), 1, limits, lambda: self.now_s)
        self.switches = Switches.of(limits)
        self.ended: list[tuple[Transaction, TidelockError]] = []
        self.swept: list[bool] = []
        tasks: Any = BackgroundTasks.__new__(BackgroundTasks)
        tasks._settings, tasks._transactions, tasks._switches = limits, self.transactions, self.switches
        tasks._local = SimpleNamespace(waiters=CsnWaiters(Csn(9)))
        tasks._commits, tasks._snapshots, tasks._metrics = self, SimpleNamespace(sweep=self.sweep), Metrics()
        self.tasks = tasks

    async def roll_back(self, tx: Transaction, error: TidelockError) -> None:
        """Roll back (`Commits`)."""
        self.ended.append((tx, error))
        self.transactions.close(tx, TxState.ROLLED_BACK, error=error)

    async def sweep(self, *, expire: bool) -> None:
        """Release pins (`Snapshots`)."""
        self.swept.append(expire)


async def test_leases_that_run_out_are_kept_while_the_sweep_is_off() -> None:
    """Clients that cannot reach their home keep their work; switched on, the sweep ends what is overdue."""
    home = Endings(lease_s=10)
    tx = home.transactions.begin(Csn(5))
    home.switches.set("lease_sweep", "off")
    home.now_s += 60
    await home.tasks._end_leases()
    assert (home.ended, home.swept, tx.state) == ([], [False], TxState.OPEN)
    home.switches.set("lease_sweep", "on")
    await home.tasks._end_leases()
    assert [(ended, type(error)) for ended, error in home.ended] == [(tx, LeaseExpiredError)]
    assert home.swept == [False, True]


async def test_a_transaction_ends_at_its_largest_age_and_frees_the_history() -> None:
    """Its client renews it all the time; at the limit it is rolled back, with the CSN that it held."""
    home = Endings(transaction_age_max_s=100)
    tx, sealed = home.transactions.begin(Csn(5)), home.transactions.begin(Csn(7))
    sealed.ending.seal()
    for _ in range(10):
        home.now_s += 10
        home.transactions.touch(tx)
        await home.tasks._end_leases()
    assert home.ended == []
    assert home.transactions.oldest_snapshot(Csn(9)) == 5
    home.now_s += 1
    await home.tasks._end_leases()
    [(ended, error)] = home.ended
    assert (ended, type(error)) == (tx, TransactionAgeError)
    assert "transaction_age_max_s" in error.message
    assert error.details == {"tid": str(tx.tid), "state": "rolled_back", "held_csn": 5}
    assert home.transactions.oldest_snapshot(Csn(9)) == 7
    with pytest.raises(TransactionAgeError):
        home.transactions.require_open(home.transactions.find(str(tx.tid)))


async def test_an_age_of_zero_is_no_limit() -> None:
    """A shard whose jobs run for days says so."""
    home = Endings(transaction_age_max_s=0, lease_s=3600)
    tx = home.transactions.begin(Csn(5))
    home.now_s += 3599
    home.transactions.touch(tx)
    home.now_s += 3599
    await home.tasks._end_leases()
    assert home.ended == []
