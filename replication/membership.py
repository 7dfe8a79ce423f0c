"""How a change of the members is made: the reads, their order, and one multi that a race makes fail.

The rules are in :mod:`tidelock.replication.core.membership_rules`. The roster is read first, then everything
that it covers, in one session: the multi checks the version of the roster, so a change by another replica in
between refuses it, and it is planned again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from tidelock.csnlog import faults
from tidelock.csnlog.cluster.replica_progress import Fenced
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn, ReplicaId
from tidelock.csnlog.core.model import ClusterState
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.roster import roster_of
from tidelock.csnlog.core.store import Store
from tidelock.errors import UnavailableError
from tidelock.replication.core.lag import epochs_of
from tidelock.replication.core.membership_rules import (
    MemberChange,
    MemberReading,
    MembersReading,
    NotYet,
    plan,
)

CHANGE: Final = faults.step("membership.change")
#: How often a change is planned again because another write came between, and the pause before that.
_TRIES: Final = 50
_AGAIN_S: Final = 0.05


class MemberChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Makes changes of the members, for one agent.

    Attributes:
        replica: The own id.
        cluster: The settings of the bootstrap.
        store: The session to ZooKeeper.
        fenced: Applies a multi under the own fence.
        end: Returns the end of the log, behind a write barrier.
        lag_max: CSNs that a replica which is well may be behind the end of the log.
        patience_s: How long a replica that leaves waits for those that stay to have all that it has.
        nonce: Returns a text that is unique.
    """

    replica: ReplicaId
    cluster: ClusterState
    store: Store
    fenced: Fenced
    end: Callable[[], Awaitable[Csn]]
    lag_max: int
    patience_s: float
    nonce: Callable[[], str]

    async def read(self) -> MembersReading | None:
        """Read the members behind the end of the log; None if the session has changed or a read failed.

        Raises:
            FencedError, UnavailableError: The end of the log could not be read.
            CorruptError: A znode cannot be read.
        """
        end = await self.end()
        session = self.store.session
        node = await self.store.get(tree.REPLICAS)
        names = await self.store.children(tree.REPLICAS)
        if not isinstance(node, Ok) or not isinstance(names, Ok):
            return None
        replicas = [ReplicaId(name) for name in sorted(names.value)]
        found = await asyncio.gather(*map(self._read_one, replicas))
        read = {replica: one for replica, one in zip(replicas, found, strict=True) if one is not None}
        if len(read) < len(replicas) or self.store.session != session:
            return None
        return MembersReading(
            node=node.value,
            roster=roster_of(node.value, self.cluster),
            replicas=read,
            end=end,
            epochs=epochs_of(self.cluster),
            lag_max=self.lag_max,
        )

    async def _read_one(self, replica: ReplicaId) -> MemberReading | None:
        member, session, progress, alive = await asyncio.gather(
            self.store.get(tree.replica(replica)),
            self.store.get(tree.session(replica)),
            self.store.get(tree.progress(replica)),
            self.store.exists(tree.alive(replica)),
        )
        if (
            not isinstance(member, Ok)
            or not isinstance(session, Ok)
            or not isinstance(progress, Ok)
            or not isinstance(alive, Ok)
        ):
            return None
        return MemberReading(
            member=codec.decode_member(member.value.data),
            session=codec.decode_session(session.value.data),
            session_version=session.value.version,
            progress=codec.decode_progress(progress.value.data),
            progress_version=progress.value.version,
            # The own sign of life is written again after each new session; the own fence is checked anyway.
            alive=alive.value is not None or replica == self.replica,
        )

    async def make(self, change: MemberChange) -> bool:
        """Make a change; return False if it was made before.

        After a lost answer the members are read again behind the raised fence, which shows whether the multi
        was applied. So the call may be repeated.

        Raises:
            MembershipError: The change is refused, and nothing was written.
            FencedError: Another replica has raised the own fence.
            UnavailableError: ZooKeeper could not be read or written; repeat the call.
        """
        sent, tries, asked = False, 0, CSN_NONE
        clock = asyncio.get_running_loop().time
        until = clock() + self.patience_s
        while tries < _TRIES:
            seen = await self.read()
            if seen is not None:
                asked = asked or seen.end
                ops = plan(change, replace(seen, asked=asked), by=self.replica, nonce=self.nonce())
                if ops is None:
                    return sent
                if isinstance(ops, NotYet):
                    if clock() >= until:
                        raise ops.error
                    await asyncio.sleep(_AGAIN_S)
                    continue
                await CHANGE.before()
                sent = True
                if isinstance(await self.fenced(ops), Ok):
                    await CHANGE.after()
                    return True
            tries += 1
            await asyncio.sleep(_AGAIN_S)
        raise UnavailableError("the members could not be changed now, others change them too; try again")
