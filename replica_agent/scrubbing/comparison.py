"""Compares what this replica shows with what the others show, at CSNs on which all of them agree.

Such a CSN is the newest one at a whole multiple of `compare_interval_s`, by the log's time: every replica
finds the same one without asking. A replica that most others contradict is wrong, whatever the cause: it
stops, and its next boot clones. Without a majority nobody knows who is wrong; all go on, and say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.errors import TidelockError
from tidelock.replica_agent.config.metrics import ScrubMetrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.scrubbing.agreement import disagreement
from tidelock.replica_agent.scrubbing.state_digest import state_digest
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.wire.peers import StateDigest

_log = structlog.get_logger("comparison")

#: The end of the reason of a replica that clones since it was outvoted.
OUTVOTED: Final = "they are a majority: the catalog of this replica is wrong; it clones"
#: How long a digest is kept: all others ask for it at about the same time. In seconds.
_KEPT_S: Final = 30.0


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class StateComparison:
    """The comparison of one boot.

    Attributes:
        replica: This replica.
        settings: `compare_interval_s`.
        reader: The catalog of this replica.
        members: Returns the number of the members, and the API addresses of the others that live.
        ask: Asks the agent at an address for its digest at a CSN.
        outvoted: Called with the reason when this replica is the wrong one.
        metrics: Its gauge.
        log_ms: The log's time (Unix, ms).
        monotonic: Seconds.
    """

    replica: ReplicaId
    settings: AgentSettings
    reader: CatalogReader
    members: Callable[[], tuple[int, Sequence[str]]]
    ask: Callable[[str, Csn], Awaitable[StateDigest]]
    outvoted: Callable[[str], None]
    metrics: ScrubMetrics
    log_ms: Callable[[], int]
    monotonic: Callable[[], float]
    _round: int | None = field(default=None, init=False)
    _kept: tuple[float, asyncio.Future[StateDigest]] | None = field(default=None, init=False)
    _kept_csn: Csn = field(default=CSN_NONE, init=False)

    async def check(self) -> None:
        """Compare, if the time for it has come.

        The first round after a start is left out: most replicas start together, and have other work then.
        """
        interval_ms = round(self.settings.compare_interval_s * 1000)
        now = self.log_ms() // interval_ms
        if self._round is None or now == self._round:
            self._round = now
            return
        self._round = now
        csn = self.reader.csn_at(now * interval_ms)
        if csn is None or csn < self.reader.horizon():
            return  # nobody can compare there any more
        await self.compare(csn)

    async def compare(self, csn: Csn) -> None:
        """Compare at a CSN; those that do not answer, or cannot show it, say nothing."""
        members, others = self.members()
        own = await self.digest(csn)
        answers = await asyncio.gather(*(self.ask(api, csn) for api in others), return_exceptions=True)
        for error in answers:
            if isinstance(error, BaseException) and not isinstance(error, TidelockError):
                raise error
        heard = [one for one in answers if isinstance(one, StateDigest)]
        found = disagreement(own, heard, members)
        self.metrics.disagreeing.set(0 if found is None else len(found.others))
        if found is None:
            _log.debug("states_agree", csn=csn, heard=len(heard))
            return
        _log.error(
            "states_disagree", csn=csn, tables=found.tables, others=found.others, outvoted=found.outvoted
        )
        if found.outvoted:
            self.outvoted(f"{found}, and {OUTVOTED}")

    async def digest(self, csn: Csn) -> StateDigest:
        """Return the digest of this replica at a CSN; SnapshotTooOldError if it cannot show it."""
        now_s = self.monotonic()
        if self._kept is None or self._kept_csn != csn or now_s - self._kept[0] > _KEPT_S:
            making = asyncio.ensure_future(
                asyncio.to_thread(state_digest, self.settings.data_dir, self.replica, csn)
            )
            making.add_done_callback(_heard)
            self._kept, self._kept_csn = (now_s, making), csn
        return await asyncio.shield(self._kept[1])


def _heard(done: asyncio.Future[StateDigest]) -> None:
    """Take note of an error that nobody may wait for any more."""
    if not done.cancelled() and isinstance(error := done.exception(), TidelockError):
        _log.debug("no_digest", reason=error.message)
