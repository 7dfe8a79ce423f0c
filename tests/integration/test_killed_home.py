"""A writer whose home is killed: the loop of docs/transactions.md goes on at another replica, at once.

The cluster keeps ZooKeeper sessions for long, and fences silent homes after minutes. So a test ends only if
nothing waits for these: the process of a killed home is seen to be gone.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.faults.lab import Gates
from tidelock.client import Database, Transaction, connect
from tidelock.cluster import LocalCluster
from tidelock.errors import NotCommittedError

HOME = "r1"
BEFORE, AFTER = "csnlog.commit.before", "csnlog.commit.after"
SETTINGS: Final[dict[str, Any]] = {**QUICK, "session_timeout_s": 30, "fence_timeout_s": 600}
ORDERS = pa.schema([("o_id", pa.int64()), ("o_total", pa.int64())])
PAGE = Path(__file__).parents[2] / "docs/transactions.md"


def rows(number: int) -> pa.Table:
    """One row."""
    return pa.table({"o_id": [number], "o_total": [number]}, schema=ORDERS)


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Gates at which the home dies in its commit: before its record is sent, and before it answers."""
    return Gates(tmp_path_factory.mktemp("gates"), {HOME: {BEFORE: "crash", AFTER: "crash"}})


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory, gates: Gates) -> LocalCluster:
    """One cluster for the module, with the table of the page."""
    made = module_cluster(settings=SETTINGS, environment_of={HOME: gates.environment(HOME)})
    with made.connect() as db:
        db.create_table("orders", ORDERS)
    return made


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster with all replicas up."""
    yield shared
    shared.up()


class KillingDatabase:
    """A client that does something after the insert of its first transaction."""

    def __init__(self, db: Database, then: Callable[[], object]) -> None:
        self._db = db
        self._then: Callable[[], object] | None = then

    def begin(self, label: str) -> Transaction:
        """Begin; the statement of the first transaction has a consequence."""
        tx = self._db.begin(label)
        insert, then = tx.insert, self._then
        if then is not None:
            self._then = None

            def insert_and_then(table: str, data: Any) -> object:
                done = insert(table, data)
                then()
                return done

            vars(tx)["insert"] = insert_and_then
        return tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def documented_loop(db: KillingDatabase | Database) -> Callable[..., int]:
    """Return the function `load` of the page, for a client."""
    [block] = [
        text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "def load(" in text
    ]
    names: dict[str, Any] = {"db": db}
    exec(block.partition("\n\n\nrows = ")[0], names)  # noqa: S102 - the page's own code
    load: Callable[..., int] = names["load"]
    return load


@pytest.mark.parametrize("moment", ["before the commit", BEFORE, AFTER])
def test_the_documented_loop_survives_a_killed_home(local: LocalCluster, gates: Gates, moment: str) -> None:
    """The rows are in once, whether the home dies before its commit is requested, before it, or after it."""
    number = {"before the commit": 1, BEFORE: 2, AFTER: 3}[moment]
    fault = gates.open(HOME, moment) if moment in {BEFORE, AFTER} else contextlib.nullcontext()
    with connect(local.url(HOME)) as db:
        killing = KillingDatabase(db, lambda: local.kill(HOME))
        load = documented_loop(killing if moment == "before the commit" else db)
        begun = time.monotonic()
        with fault:
            csn = load(rows(number), label=f"load {number}")
        assert time.monotonic() - begun < SETTINGS["session_timeout_s"] / 2, (
            "something waited for the session"
        )
        assert db.read("orders", where=f"o_id = {number}").num_rows == 1
        assert db.label(f"load {number}").csn == csn  # type: ignore[union-attr]


def test_a_commit_at_a_killed_home_says_begin_again(local: LocalCluster) -> None:
    """Its error is certain and retriable, so that a loop by these properties goes on."""
    with connect(local.url(HOME)) as db:
        tx = db.begin(fresh=True)
        tx.insert("orders", rows(10))
        local.kill(HOME)
        with pytest.raises(NotCommittedError, match="begin again") as caught:
            tx.commit()
        assert caught.value.retriable
        assert db.outcome(tx.tid).decision == "aborted"


def test_locks_of_a_killed_home_are_in_nobodys_way(local: LocalCluster) -> None:
    """Rows that a transaction of a killed home was removing are removed by the next one at its first try."""
    with connect(local.url(HOME)) as db:
        db.insert("orders", rows(20), wait="all")
        tx = db.begin()
        tx.delete("orders", "o_id = 20")
        local.kill(HOME)
        with db.begin() as other:
            assert other.delete("orders", "o_id = 20").rows_deleted == 1
        assert db.read("orders", where="o_id = 20").num_rows == 0
