"""Switches of running agents, by the command line, and the largest age of a transaction (real processes)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tests.support.clusters.client_process import ROWS
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.refusals import Addresses, http
from tests.support.waiting import TIMEOUT_S, eventually
from tidelock.cli import app as cli
from tidelock.client import TransactionState
from tidelock.cluster import LocalCluster
from tidelock.errors import SerializationConflictError, TransactionAgeError
from tidelock.exits import Exit
from workloads.agents import ask

REPLICAS = ("r1", "r2")
#: Parts have files of their own, and a file goes soon after the horizon has passed its removal.
SETTINGS: Final = {
    **QUICK,
    "clean_interval_s": 0.5,
    "compaction": False,
    "horizon_interval_s": 0.2,
    "inline_part_bytes_max": 1000,
    "transaction_age_max_s": 5,
}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas on which no transaction is open for more than five seconds."""
    made = module_cluster(replicas=2, settings=SETTINGS)
    with made.connect("r1") as db:
        db.create_table("t", ROWS.schema)
    return made


def tidelock(local: LocalCluster, *arguments: str) -> Result:
    """Run the command line on the cluster."""
    return CliRunner().invoke(cli.app, [*arguments, "--url", local.url("r1")], env={"NO_COLOR": "1"})


def switches(local: LocalCluster, replica: str) -> dict[str, tuple[str, str]]:
    """Return the switches that a replica shows in its status: value, and configured value."""
    shown: list[dict[str, Any]] = ask(local, replica, "/status")["switches"]
    return {switch["name"]: (switch["value"], switch["configured"]) for switch in shown}


def test_a_switch_is_set_on_all_replicas_and_lost_at_a_restart(local: LocalCluster) -> None:
    """The status of each shows it beside the configured value, which a restart restores."""
    said = tidelock(local, "admin", "set", "compaction", "on", "--all")
    assert said.exit_code == Exit.OK, said.output
    assert said.stdout.splitlines() == [
        f"{replica}: compaction is on; a restart restores off" for replica in REPLICAS
    ]
    assert [switches(local, replica)["compaction"] for replica in REPLICAS] == [("on", "off")] * 2
    one = tidelock(local, "admin", "set", "log_level", "debug", "--replica", "r2", "--json")
    assert list(json.loads(one.stdout)) == ["r2"]
    assert switches(local, "r2")["log_level"][0] == "debug"
    assert switches(local, "r1")["log_level"][0] != "debug"
    local.stop("r2")
    local.start("r2")
    assert switches(local, "r2")["compaction"] == ("off", "off")
    assert switches(local, "r1")["compaction"] == ("on", "off")
    assert tidelock(local, "admin", "set", "compaction", "off", "--all").exit_code == Exit.OK


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("collection", "off"),
        ("compaction", "on"),
        ("lease_sweep", "off"),
        ("lock_wait_s", "2.5"),
        ("log_level", "warning"),
    ],
)
def test_each_switch_is_shown_in_the_status(local: LocalCluster, name: str, value: str) -> None:
    """Its present value stands beside the configured one, in the status of the agent and of the command."""
    before = switches(local, "r1")[name]
    assert before[0] != value
    assert tidelock(local, "admin", "set", name, value, "--replica", "r1").exit_code == Exit.OK
    try:
        assert switches(local, "r1")[name] == (value, before[1])
        assert switches(local, "r2")[name] == before
        said = f"{name} is {value} at r1; a restart restores {before[1]}"
        assert said in tidelock(local, "status").stdout.splitlines()
    finally:
        assert tidelock(local, "admin", "set", name, before[0], "--replica", "r1").exit_code == Exit.OK
    assert f"{name} is {before[0]} at r1" not in tidelock(local, "status").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("compactoin", "off", "--all"), Exit.USAGE, "collection, compaction, lease_sweep, lock_wait_s"),
        (("compaction", "maybe", "--all"), Exit.USAGE, "takes on or off"),
        (("compaction", "off"), Exit.USAGE, "either --replica, or --all"),
        (("compaction", "off", "--all", "--replica", "r1"), Exit.USAGE, "either --replica, or --all"),
    ],
)
def test_what_no_switch_takes_is_refused(
    local: LocalCluster, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """An unknown name is answered with the list, a value with the values; where to set it must be said."""
    before = [switches(local, replica) for replica in REPLICAS]
    refused = tidelock(local, "admin", "set", *arguments)
    assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr
    assert [switches(local, replica) for replica in REPLICAS] == before


@pytest.mark.slow
def test_parts_are_merged_once_compaction_is_switched_on(local: LocalCluster) -> None:
    """They stay while it is off, as it is configured here; the rows stay in both cases."""
    with local.connect("r1") as db:
        db.create_table("many", ROWS.schema)
        for _ in range(12):
            db.insert("many", ROWS, wait="all")

        def parts() -> int:
            with db.snapshot() as snapshot:
                return len(snapshot.parts("many"))

        assert parts() == 12
        assert tidelock(local, "admin", "set", "compaction", "on", "--all").exit_code == Exit.OK
        try:
            eventually(lambda: parts() < 12, what="a merge")
        finally:
            assert tidelock(local, "admin", "set", "compaction", "off", "--all").exit_code == Exit.OK
        assert db.read("many").num_rows == 12 * ROWS.num_rows


def test_removed_parts_stay_on_the_disk_of_a_replica_without_collection(local: LocalCluster) -> None:
    """The other replica deletes its files meanwhile, twice; this one deletes them once it is switched on."""

    def files(replica: str) -> set[str]:
        return {path.name for path in (local.data_dir(replica) / "parts").rglob("*.parquet")}

    def left(replica: str) -> set[str]:
        return removed & files(replica)

    others, removed = files("r2"), set[str]()
    assert tidelock(local, "admin", "set", "collection", "off", "--replica", "r1").exit_code == Exit.OK
    with local.connect("r2") as db:
        db.create_table("kept", ROWS.schema)
        for _ in range(2):
            db.insert("kept", pa.table({"k": range(5000)}), wait="all")
            removed.update(files("r2") - others)
            assert removed <= files("r1")
            db.truncate("kept", wait="all")
            eventually(lambda: db.raise_horizon() and not left("r2"), what="r2 deletes its files")
    assert len(removed) == 2
    assert removed <= files("r1")
    assert tidelock(local, "admin", "set", "collection", "on", "--replica", "r1").exit_code == Exit.OK
    eventually(lambda: not left("r1"), what="r1 deletes its files")


@pytest.mark.parametrize(("wait_s", "refused"), [("0", True), ("60", False)])
def test_a_removal_waits_for_a_lock_as_long_as_is_switched(
    local: LocalCluster, wait_s: str, refused: bool
) -> None:
    """It is refused at once, or waits until the other transaction has ended."""
    with local.connect("r1") as db:
        name = f"locked_{wait_s}"
        db.create_table(name, ROWS.schema)
        db.insert(name, ROWS, wait="all")
        assert tidelock(local, "admin", "set", "lock_wait_s", wait_s, "--replica", "r1").exit_code == Exit.OK
        first, second = db.begin(), db.begin()
        first.truncate(name)
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(second.truncate, name)
            if refused:
                with pytest.raises(SerializationConflictError):
                    other.result(timeout=TIMEOUT_S)
            else:
                db.begin(fresh=True).rollback()  # the agent works meanwhile
                assert not other.done()
            first.rollback()
            if not refused:
                other.result(timeout=TIMEOUT_S)
                second.commit()
        assert db.read(name).num_rows == (ROWS.num_rows if refused else 0)


def test_leases_are_kept_while_their_sweep_is_off(local: LocalCluster) -> None:
    """A transaction without a sign of life stays open until the sweep is switched on again."""
    api = Addresses.of(local, "r1").api
    assert tidelock(local, "admin", "set", "lease_sweep", "off", "--replica", "r1").exit_code == Exit.OK
    tid = http("POST", f"{api}/transactions", {"lease_s": 0.1}).json["tid"]

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = http("GET", f"{api}/transactions/{tid}").json
        return found

    eventually(lambda: shown()["lease_left_s"] == 0, what="the end of the lease")
    assert shown()["state"] == "open"
    assert tidelock(local, "admin", "set", "lease_sweep", "on", "--replica", "r1").exit_code == Exit.OK
    eventually(lambda: shown()["state"] == "rolled_back", what="the rollback")
    assert "no sign of life" in shown()["error"]


def test_a_transaction_that_is_alive_ends_at_its_largest_age(local: LocalCluster) -> None:
    """Its client renews the lease all the time; the error says what it held, and the horizon may pass."""
    with local.connect("r1") as db:
        tx = db.begin(lease="2s")
        tx.insert("t", ROWS)
        db.insert("t", ROWS)
        eventually(lambda: tx.state is TransactionState.ROLLED_BACK, what="the rollback")
        with pytest.raises(TransactionAgeError, match="transaction_age_max_s"):
            tx.insert("t", ROWS)
        [found] = [row for row in db.transactions() if row["tid"] == tx.tid]
        assert (found["state"], "transaction_age_max_s" in found["error"]) == ("rolled_back", True)

        def oldest() -> int:
            [csn] = [row["oldest"] for row in db.status()["replicas"] if row["id"] == "r1"]
            return int(csn)

        eventually(lambda: oldest() > tx.snapshot_csn, what="an oldest CSN above that of the transaction")
