"""The product's longer conversations with ZooKeeper: a start, an outcome, the log to its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from unittest import mock

from tests.sim.explore.ensemble import Ensemble, RecordFacts, first_life
from tests.sim.explore.replay import (
    Replays,
    ReplayView,
    Returned,
    Script,
    ScriptedStore,
    Turn,
    fence_then_log,
    let_write,
    never,
)
from tests.support.clusters.resolving import GivenLocal, resolver_over
from tests.support.wall_clocks import own_clock
from tidelock.csnlog.cluster import bootstrap
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, open_session
from tidelock.csnlog.cluster.start_check import FORMAT_VERSION
from tidelock.csnlog.core.batch import LogLimits
from tidelock.csnlog.core.follower import Follower, number_after
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId, Tid
from tidelock.csnlog.core.model import ClusterState, LogRecord, MemberState, Record, RecordKind
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.log import CsnLog
from tidelock.csnlog.reading import read_to_end
from tidelock.replica_agent.transactions.outcomes.rules import CLIENT

Reader = Callable[..., object]
READ_AHEAD = 4


class Procedures:
    """Each conversation is had once for each course that it takes.

    Args:
        log: The class that knows how to ask for an outcome.
        reader: Reads the log to its end.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        replays: Replays,
        log: type[CsnLog] = CsnLog,
        reader: Reader = read_to_end,
    ) -> None:
        self._ensemble, self._replays, self._log, self._reader = ensemble, replays, log, reader
        self._known: dict[Hashable, Turn] = {}

    def start(self, home: ReplicaId, nonce: str, applied: Csn, script: Script) -> Turn:
        """Begin a life; ends with the :class:`OwnSession`."""
        key = ("start", home, nonce, applied, script)
        if key not in self._known:
            with mock.patch.object(bootstrap, "_RETRY_S", 0):
                self._known[key] = self._replays.run(
                    open_session(
                        ScriptedStore(self._ensemble, script, never),
                        replica=home,
                        member=MemberState(),
                        disk=f"disk-{home}",
                        known=KnownState(cluster_id="c", last_csn=applied),
                        nonce=lambda: nonce,
                    )
                )
        return self._known[key]

    def outcome(self, asker: ReplicaId, tid: Tid, catalog: tuple[RecordFacts, ...], script: Script) -> Turn:
        """Ask a replica that has these records in its catalog; ends with the outcome."""
        key = ("outcome", asker, tid, catalog, script)
        if key not in self._known:
            self._known[key] = self._replays.run(self._outcome(asker, tid, catalog, script))
        return self._known[key]

    async def _outcome(
        self, asker: ReplicaId, tid: Tid, catalog: tuple[RecordFacts, ...], script: Script
    ) -> object:
        state = first_life(asker)
        own = OwnSession(
            replica=asker, boot=state.boot, disk=state.disk, nonce=state.nonce, fence=0,
            cluster=ClusterState("c", FORMAT_VERSION, 2, 1000), tail=CSN_NONE, horizon=CSN_NONE,
        )  # fmt: skip
        log = self._log(
            ScriptedStore(self._ensemble, script, fence_then_log),
            session=own,
            limits=LogLimits(read_ahead=READ_AHEAD),
            clocks=own_clock(),
            deliver=_nowhere,
            on_state=lambda _, __: None,
        )
        follower = Follower(catalog[-1].csn, READ_AHEAD)
        follower.next = number_behind(catalog, catalog[-1].csn)
        let_write(log, follower)
        found = {text: Committed(entry.csn) for entry in catalog for text in entry.tids}
        # Of a transaction of its own a replica is only asked in a later life.
        boot = state.boot + tid.boot if tid.home == asker else state.boot
        local = GivenLocal(replica=asker, boot=boot, known=lambda asked: found.get(str(asked)))
        return await resolver_over(log, local).outcome(tid, CLIENT)

    def own_tids(self, home: ReplicaId, state: int, start: Csn) -> tuple[tuple[str, Csn], ...] | None:
        """The tids of a replica from a record on to the end of the log, as its shell finds them.

        None when the records are deleted: the follower will find that out.
        """
        key = ("own", home, state, start)
        if key not in self._known:
            store = ScriptedStore(self._ensemble, (ReplayView(state),), never)
            self._known[key] = self._replays.run(
                self._reader(store, start, session=1, read_ahead=READ_AHEAD)  # type: ignore[arg-type]
            )
        turn = self._known[key]
        if not isinstance(turn, Returned):
            return None
        return tuple(
            (tid.tid, one.csn) for one in turn.value if one.record.home == home for tid in one.record.tids
        )


def number_behind(log: tuple[RecordFacts, ...], number: Csn) -> Csn:
    """The number of the record that follows one of the log."""
    entry = next(entry for entry in log if entry.csn == number)
    return _number_after(number, ends_epoch=entry.ends_epoch)


@functools.cache  # asked in every state
def _number_after(number: Csn, *, ends_epoch: bool) -> Csn:
    kind = RecordKind.END if ends_epoch else RecordKind.COMMIT
    return number_after(number, Record(kind, ReplicaId("any"), 0))


async def _nowhere(_: list[LogRecord]) -> None:
    """Do nothing: a question for an outcome delivers no records."""
