"""Replicas compare themselves once in each interval of the log's time, and the wrong one hears of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from tests.support.replicas.audited import AuditedReplica
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.errors import UnavailableError
from tidelock.replica_agent.config.metrics import ScrubMetrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.scrubbing.comparison import StateComparison
from tidelock.replica_agent.scrubbing.state_digest import state_digest
from tidelock.wire.peers import StateDigest

R1 = ReplicaId("r1")
#: The commits of the replica are at 1 to 5 s.
INTERVAL_S = 4.0


@dataclass
class Peers:
    """The other replicas: what each of them shows, or the error that it answers."""

    replica: AuditedReplica
    wrong: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    asked: list[tuple[str, Csn]] = field(default_factory=list)
    outvoted: list[str] = field(default_factory=list)
    log_ms: int = 3000

    def __post_init__(self) -> None:
        self.metrics = ScrubMetrics(CollectorRegistry())
        self.comparison = StateComparison(
            replica=R1,
            settings=AgentSettings(
                replica="r1", data_dir=self.replica.path, zk="unused", compare_interval_s=INTERVAL_S
            ),
            reader=self.replica.catalog.reader,
            members=lambda: (3, ["r2:1", "r3:1"]),
            ask=self.ask,
            outvoted=self.outvoted.append,
            metrics=self.metrics,
            log_ms=lambda: self.log_ms,
            monotonic=lambda: self.log_ms / 1000,
        )

    async def ask(self, api: str, csn: Csn) -> StateDigest:
        """Answer as the peer at an address."""
        self.asked.append((api, csn))
        name = api[:2]
        if name in self.silent:
            raise UnavailableError("no answer")
        right = state_digest(self.replica.path, ReplicaId(name), csn)
        tables = dict.fromkeys(right.tables, "wrong") if name in self.wrong else right.tables
        return StateDigest(right.replica, right.csn, right.form, right.zxid, dict(tables))

    async def at(self, log_ms: int) -> None:
        """Let the log's time come to a moment, and check."""
        self.log_ms = log_ms
        await self.comparison.check()


async def test_all_agree_at_the_csn_of_the_interval(replica: AuditedReplica) -> None:
    """Once in an interval; the CSN is the newest one at its begin, whenever a replica looks."""
    peers = Peers(replica)
    await peers.at(3500)
    assert peers.asked == []
    await peers.at(4600)
    await peers.at(7900)
    assert peers.asked == [("r2:1", 4), ("r3:1", 4)]
    await peers.at(8000)
    assert peers.asked[2:] == [("r2:1", 5), ("r3:1", 5)]
    assert not peers.outvoted
    assert peers.metrics.disagreeing._value.get() == 0


async def test_a_replica_that_both_others_contradict_is_wrong(replica: AuditedReplica) -> None:
    """It hears the CSN, the table and the others."""
    peers = Peers(replica, wrong=frozenset({"r2", "r3"}))
    await peers.at(3500)
    await peers.at(4600)
    [reason] = peers.outvoted
    assert reason.startswith("at CSN 4 the parts of default.t are not those that r2, r3 show")
    assert peers.metrics.disagreeing._value.get() == 2


@pytest.mark.parametrize(
    ("wrong", "silent", "disagreeing"), [({"r2"}, set(), 1), ({"r2"}, {"r3"}, 1), (set(), {"r2", "r3"}, 0)]
)
async def test_one_other_outvotes_nobody(
    replica: AuditedReplica, wrong: set[str], silent: set[str], disagreeing: int
) -> None:
    """The third may agree, may be silent; without a majority nothing is done but said."""
    peers = Peers(replica, wrong=frozenset(wrong), silent=frozenset(silent))
    await peers.at(3500)
    await peers.at(4600)
    assert not peers.outvoted
    assert peers.metrics.disagreeing._value.get() == disagreeing


async def test_nothing_is_compared_below_the_horizon(replica: AuditedReplica) -> None:
    """Rows of that time are collected, here sooner than there."""
    replica.sql("UPDATE meta SET value = 5 WHERE key = 'horizon'")
    peers = Peers(replica)
    await peers.at(3500)
    await peers.at(4600)
    assert peers.asked == []


async def test_a_digest_is_made_once_for_all_that_ask(
    replica: AuditedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others ask for the same one at about the same time; later it is made again, to see new rot."""
    made: list[Csn] = []

    def counted(folder: object, name: ReplicaId, csn: Csn) -> StateDigest:
        made.append(csn)
        return StateDigest(name, csn, 1, 9, {})

    monkeypatch.setattr("tidelock.replica_agent.scrubbing.comparison.state_digest", counted)
    peers = Peers(replica)
    await asyncio.gather(*(peers.comparison.digest(Csn(4)) for _ in range(5)))
    assert made == [4]
    await peers.comparison.digest(Csn(5))
    peers.log_ms += 60_000
    await peers.comparison.digest(Csn(5))
    assert made == [4, 5, 5]


async def test_an_error_that_nobody_foresaw_is_raised(replica: AuditedReplica) -> None:
    """It stops the agent; silence of a peer does not."""

    async def ask(api: str, csn: Csn) -> StateDigest:
        raise ZeroDivisionError

    peers = Peers(replica)
    peers.comparison.ask = ask
    with pytest.raises(ZeroDivisionError):
        await peers.comparison.compare(Csn(4))
