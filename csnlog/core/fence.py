"""The fence of a replica: the data version of its session znode, raised by itself or by another. Pure.

Every multi of a replica checks this version. So a raise makes sure that nothing sent before can be applied
later. The data holds a nonce, fresh with every write. It identifies a raise whose reply was lost, and a nonce
that is not ours says that another replica has fenced this one (rule unknown; F1 and F2).

Versions only grow. So a read that shows a lower version than the known one comes from a server that lags
behind, and means nothing.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.imprint import another_fence, missing_fence, older_fence
from tidelock.csnlog.core.model import CLONING, FENCED, REMOVED, STRUCK, SessionState
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Node, Op, SetData, Written
from tidelock.errors import CorruptError


class FenceFinding(enum.Enum):
    """The meaning of an answer of the store for the own fence."""

    #: Our raise was applied.
    RAISED = "raised"
    #: A raise by another replica was applied.
    FOREIGN = "foreign"
    #: This answer does not decide it; read the session znode.
    READ = "read"
    #: Nothing was learned; ask again after a pause.
    AGAIN = "again"
    #: The fence has the version that we knew.
    UNCHANGED = "unchanged"


class OwnFence(msgspec.Struct, frozen=True):
    """The knowledge about the own fence.

    Attributes:
        path: Its znode.
        state: The data that we last wrote, or that our start wrote.
        version: The version of that data, or of the data of another replica that replaced it.
        session: The ZooKeeper session that has seen this version; its reads are at least as new. 0 = none.
        pending: Nonce of a raise that is not decided, "" if no raise is pending. All repetitions keep it, so
            that at most one of them is applied and any of them is recognised.
    """

    path: str
    state: SessionState
    version: int
    session: int = 0
    pending: str = ""

    def raised_by(self, nonce: str) -> OwnFence:
        """Return the state after the begin of a raise with this nonce."""
        return replace(self, pending=nonce)

    def ops(self) -> tuple[Op, ...]:
        """Return the multi of the raise: a compare-and-set, since a plain set would hide a foreign raise."""
        data = codec.encode_session(msgspec.structs.replace(self.state, nonce=self.pending))
        return (SetData(self.path, data, self.version),)

    def ended(
        self, result: Ok[tuple[object, ...]] | Refused | Unknown, session: int
    ) -> tuple[OwnFence, FenceFinding]:
        """Process the result of the raise.

        Raises:
            CorruptError: The znode does not exist; nothing in Tidelock ever deletes it.
        """
        match result:
            case Ok(value=(Written(version=version),)):
                return self._confirmed(version, session), FenceFinding.RAISED
            case Refused(reason=Reason.BAD_VERSION):
                return self, FenceFinding.READ
            case Refused(reason=Reason.NO_NODE):
                raise CorruptError(missing_fence(self.path))
        return self, FenceFinding.AGAIN

    def seen(self, result: Ok[Node] | Refused | Unknown, session: int) -> tuple[OwnFence, FenceFinding]:
        """Process the result of reading the znode.

        Raises:
            CorruptError: The bytes cannot be read, or contradict what was written at that version.
        """
        if not isinstance(result, Ok) or session == 0:
            return self, FenceFinding.AGAIN
        version, state = result.value.version, codec.decode_session(result.value.data)
        if version < self.version:
            return self, FenceFinding.AGAIN
        if version == self.version:
            self._require_own(state)
            return self, FenceFinding.UNCHANGED
        if self.pending and state.nonce == self.pending:
            return self._confirmed(version, session), FenceFinding.RAISED
        return replace(self, version=version, session=session, pending="", state=state), FenceFinding.FOREIGN

    def is_above(self, found: Node) -> bool:
        """Return whether the znode is older than the last write that this replica knows to be there."""
        return found.version < self.version

    def shown_by(self, result: Ok[Node] | Refused | Unknown) -> bool:
        """Return whether a read shows the last raise of this replica, or a later one by whomever.

        Args:
            result: Of a read when all earlier writes were there to be seen.

        Raises:
            CorruptError: The bytes cannot be read, or ZooKeeper was set back: the raise is lost, or another
                one has got its version. A compare-and-set, and a check, would hide the latter.
        """
        if isinstance(result, Refused) and result.reason is Reason.NO_NODE:
            raise CorruptError(missing_fence(self.path))
        if not isinstance(result, Ok):
            return False
        found = result.value
        if self.is_above(found):
            raise CorruptError(older_fence(self.path, here=self.version, there=found.version))
        if found.version == self.version:
            self._require_own(codec.decode_session(found.data))
        return True

    def _require_own(self, found: SessionState) -> None:
        """Raise unless the data at the version that this replica knows is what it has written there."""
        if found.nonce != self.state.nonce:
            raise CorruptError(another_fence(self.path, self.version))

    def _confirmed(self, version: int, session: int) -> OwnFence:
        state = msgspec.structs.replace(self.state, nonce=self.pending)
        return replace(self, state=state, version=version, session=session, pending="")


#: States of a session that a raise of the fence keeps: the next start of the replica depends on them.
_KEPT: Final = frozenset({STRUCK, REMOVED, CLONING})


def seize(path: str, node: Node, boot: int, nonce: str) -> SetData | None:
    """Return the write that fences boot ``boot`` of another replica; None if that is not its present boot.

    The write raises boot and version together (F2). It is a compare-and-set: of several replicas that do it
    at once, the fenced replica's own next start among them, one is applied. The disk stays: copies on it
    count.

    Args:
        path: The replica's session znode.
        node: The data read there.
        boot: The boot to end.
        nonce: A text that is unique.

    Raises:
        CorruptError: The bytes cannot be read.
    """
    found = codec.decode_session(node.data)
    if found.boot != boot:
        return None
    state = found.state if found.state in _KEPT else FENCED
    fenced = SessionState(boot=boot + 1, disk=found.disk, nonce=nonce, state=state)
    return SetData(path, codec.encode_session(fenced), node.version)
