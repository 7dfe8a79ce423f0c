"""What a home says of its own transactions, and what its janitor makes of that."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.rows import settings
from tidelock.csnlog.core.ids import Csn, ReplicaId, TableName, Tid, part_id
from tidelock.csnlog.core.results import Committed, Outcome, Running
from tidelock.replica_agent.replicas.undecided import UndecidedResolver
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.transactions.ending.commit import Commits
from tidelock.replica_agent.transactions.registry import Transactions, TxState
from tidelock.replication.core.model import Location, PartMeta

HOME = ReplicaId("r1")
BOOT = 3
FLOOR = Csn(100)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    """The catalog of r1, which keeps no outcomes up to FLOOR."""
    made = Catalog(tmp_path, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    await made.write(lambda db: jobs.set_meta(db, outcome_floor=FLOOR))
    yield made
    await made.close()


@pytest.fixture
def transactions() -> Transactions:
    """The transactions of r1's present boot."""
    return Transactions(HOME, BOOT, settings(), time.monotonic)


@pytest.fixture
def commits(catalog: Catalog, transactions: Transactions) -> Commits:
    """Of r1, as far as its word needs them."""
    unused = cast("Any", None)
    return Commits(
        replica=HOME, boot=BOOT, settings=settings(), transactions=transactions, catalog=catalog,
        files=unused, numbers=unused, copies=unused, removals=unused, validation=unused, labels=unused,
        log=unused, waiters=unused, metrics=unused, lagging=unused, applied_on=unused, clock=time.monotonic,
    )  # fmt: skip


def tid(snapshot: int, *, home: str = HOME, boot: int = BOOT, counter: int = 9) -> Tid:
    """A transaction that r1 does not remember."""
    return Tid(Csn(snapshot), ReplicaId(home), boot, counter)


async def test_word_on_what_it_remembers(
    catalog: Catalog, transactions: Transactions, commits: Commits
) -> None:
    """Running until it is applied here, also when the log has it already; then the catalog knows."""
    tx = transactions.begin(Csn(200))
    assert commits.own_word(tx.tid) == "running"
    transactions.close(tx, TxState.COMMITTED, outcome=Committed(Csn(201)))
    assert commits.own_word(tx.tid) == "running"
    applied = jobs.AppliedRecord(
        Csn(201), 1, [jobs.AppliedTid(str(tx.tid), (), label=None, data_change=True)], {}
    )
    await catalog.write(lambda db: jobs.apply(db, [applied]))
    assert commits.own_word(tx.tid) == "committed"
    await catalog.write(lambda db: jobs.prune_outcomes(db, 2, 2))
    assert commits.own_word(tx.tid) == "unknown"  # forgotten there, and still remembered as closed
    other = transactions.begin(Csn(200))
    transactions.close(other, TxState.ROLLED_BACK)
    assert commits.own_word(other.tid) == "aborted"


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (tid(FLOOR), "aborted"),
        (tid(FLOOR - 1), "unknown"),  # it may have been committed and its outcome been pruned
        (tid(FLOOR, boot=BOOT - 1), "unknown"),
        (tid(FLOOR, boot=BOOT + 1), "unknown"),
        (tid(FLOOR, home="r2"), "unknown"),
    ],
)
def test_word_on_what_it_does_not_remember(commits: Commits, asked: Tid, word: str) -> None:
    """Aborted only where a commit would still be known; the log is asked about all others."""
    assert commits.own_word(asked) == word


async def test_the_janitor_cleans_up_behind_the_own_home(
    catalog: Catalog, transactions: Transactions, commits: Commits
) -> None:
    """Parts whose rollback could not write the catalog go; those of an open transaction stay."""
    rolled_back, still_open = transactions.begin(Csn(200)), transactions.begin(Csn(200))
    transactions.close(rolled_back, TxState.ROLLED_BACK)
    staged = [
        jobs.StagedPart(
            PartMeta(part_id(HOME, BOOT, number), TableName("default.t"), "", 1, 4, "0" * 32),
            Location(f"parts/0{number}/p", 0, 4, b"12345678"),
            tx.tid,
        )
        for number, tx in enumerate((rolled_back, still_open), 1)
    ]
    await catalog.write(lambda db: jobs.add_staged(db, staged, []))
    forgotten: list[Tid] = []

    async def ask_home(asked: Tid) -> str:
        return commits.own_word(asked)

    async def outcome(_: Tid) -> Outcome:
        return Running()

    async def forget(tids: list[Tid]) -> None:
        forgotten.extend(tids)

    # Of a third one nothing is here but a fetch, which would ask for ever.
    fetched = tid(200)
    janitor = UndecidedResolver(
        catalog, ask_home=ask_home, outcome=outcome, forget=forget, fetching=lambda: {str(fetched)}
    )
    await janitor.look()
    assert forgotten == []  # what was seen once may be just on its way
    await janitor.look()
    assert sorted(forgotten) == sorted([rolled_back.tid, fetched])
