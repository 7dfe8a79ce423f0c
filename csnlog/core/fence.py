"""The fence of a replica: the data version of its session znode, raised by itself or by another. Pure.

Pure. Every multi of a replica checks this version, so whoever raises it makes sure that nothing sent before
can land later. The data holds a nonce, fresh with every write: a raise whose reply was lost is recognised by
it, and a nonce that is not ours says that another has fenced this replica (rule unknown; F1 and F2).

Versions only grow, so a read that shows a lower one than known comes from a server that lags behind and means
nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.model import SessionState
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Node, Op, SetData
from tidelock.errors import CorruptError


class Finding(enum.Enum):
    """What an answer of the store says about the own fence."""

    #: Our raise was applied.
    RAISED = "raised"
    #: Another's raise was applied.
    FOREIGN = "foreign"
    #: It cannot be told from this answer; read the session znode.
    LOOK = "look"
    #: Nothing was learned; ask again after a pause.
    AGAIN = "again"
    #: The fence stands where we knew it.
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class OwnFence:
    """What is known of the own fence.

    Attributes:
        path: Its znode.
        state: The data that we last wrote, or found written by our start.
        version: The version of that data, or of another's that replaced it.
        session: The ZooKeeper session that has seen this version; its reads are at least as new. 0 = none.
        pending: Nonce of a raise that is not decided, "" if there is none. It is kept over all repetitions,
            so that at most one of them applies and is recognised whichever it was.
    """

    path: str
    state: SessionState
    version: int
    session: int = 0
    pending: str = ""

    def raised_by(self, nonce: str) -> OwnFence:
        """Return the state in which a raise with this nonce has begun."""
        return replace(self, pending=nonce)

    def ops(self) -> tuple[Op, ...]:
        """The multi of the raise: a compare-and-set, since a plain set would hide a foreign raise."""
        data = codec.encode_session(msgspec.structs.replace(self.state, nonce=self.pending))
        return (SetData(self.path, data, self.version),)

    def ended(
        self, result: Ok[tuple[object, ...]] | Refused | Unknown, session: int
    ) -> tuple[OwnFence, Finding]:
        """Take the result of the raise.

        Raises:
            CorruptError: The znode is gone, which nothing in Tidelock ever does to it.
        """
        match result:
            case Ok(value=(int(version),)):
                return self._confirmed(version, session), Finding.RAISED
            case Refused(reason=Reason.BAD_VERSION):
                return self, Finding.LOOK
            case Refused(reason=Reason.NO_NODE):
                raise CorruptError(f"the session znode {self.path} is gone; it is never deleted: restored?")
        return self, Finding.AGAIN

    def seen(self, result: Ok[Node] | Refused | Unknown, session: int) -> tuple[OwnFence, Finding]:
        """Take the result of reading the znode.

        Raises:
            CorruptError: The bytes cannot be read, or contradict what was written at that version.
        """
        if not isinstance(result, Ok) or session == 0:
            return self, Finding.AGAIN
        version, state = result.value.version, codec.decode_session(result.value.data)
        if version < self.version:
            return self, Finding.AGAIN
        if version == self.version and state.nonce == self.state.nonce:
            return self, Finding.UNCHANGED
        if version == self.version:
            raise CorruptError(f"version {version} of {self.path} is not what was written: restored?")
        if self.pending and state.nonce == self.pending:
            return self._confirmed(version, session), Finding.RAISED
        return replace(self, version=version, session=session, pending="", state=state), Finding.FOREIGN

    def _confirmed(self, version: int, session: int) -> OwnFence:
        state = msgspec.structs.replace(self.state, nonce=self.pending)
        return replace(self, state=state, version=version, session=session, pending="")


#: States of a session that an operator gave to the replica; a raise of its fence leaves them.
_GIVEN: Final = frozenset({"struck", "removed"})


def seize(path: str, node: Node, boot: int, nonce: str) -> SetData | None:
    """Return the write that fences the life ``boot`` of another replica; None if that is not its present one.

    It raises boot and version together (F2). A compare-and-set, so that of several who do it
    at once, the replica's own next start among them, one is applied. The disk stays: copies on it count.

    Args:
        path: The replica's session znode.
        node: What was read there.
        boot: The life to be ended.
        nonce: A text that nobody else has.

    Raises:
        CorruptError: The bytes cannot be read.
    """
    found = codec.decode_session(node.data)
    if found.boot != boot:
        return None
    state = found.state if found.state in _GIVEN else "fenced"
    fenced = SessionState(boot=boot + 1, disk=found.disk, nonce=nonce, state=state)
    return SetData(path, codec.encode_session(fenced), node.version)
