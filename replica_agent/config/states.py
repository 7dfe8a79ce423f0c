"""The states of an agent and its actions in each: one table, used by everything that accepts work.

The table is also printed in docs/protocol.md ("What an agent does in each state"); a test keeps the two
equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidelock.errors import StandbyError, TidelockError, UnavailableError


class AgentState(Enum):
    """The state of an agent."""

    #: Follows the log from the catalog's position and decides what its former boot left undecided.
    STARTING = "starting"
    #: Its catalog is a clone, and parts are missing that are visible there.
    CLONING = "cloning"
    #: Does everything.
    SERVING = "serving"
    #: Does everything but begin transactions: an operator has it drained, before it is stopped.
    DRAINING = "draining"
    #: No answer from ZooKeeper for 2/3 of the session timeout: acknowledges nothing, does not serve "latest".
    SUSPENDED = "suspended"
    #: Another replica raised its fence: all its open transactions are aborted. It starts again at once.
    FENCED = "fenced"
    #: It cannot prove its state (a gap in the log, a record of a newer version, a contradiction): it serves
    #: nothing new.
    STOPPED = "stopped"
    #: SIGTERM: running work is finished, new work is refused and belongs elsewhere.
    STOPPING = "stopping"


class AgentAction(Enum):
    """An action of an agent on request."""

    BEGIN = "begin"
    INSERT = "insert"
    COMMIT = "commit"
    #: Read at a CSN that is applied here.
    READ = "read"
    #: Choose or wait for a CSN: default snapshots, ``fresh``, a CSN above the applied one.
    LATEST = "latest"
    #: Store parts for a peer and confirm that.
    ACK = "ack"
    #: Delete what is certainly not needed any more: parts that were rolled back, files without a row,
    #: outcomes past their retention.
    COLLECT = "collect"


#: The refusal of each action, in the words of an error.
_NOT_NOW: dict[AgentAction, str] = {
    AgentAction.BEGIN: "begins no transaction",
    AgentAction.INSERT: "takes no rows",
    AgentAction.COMMIT: "commits nothing",
    AgentAction.READ: "answers no reads",
    AgentAction.LATEST: "cannot tell which CSN is the newest",
    AgentAction.ACK: "stores nothing for its peers",
    AgentAction.COLLECT: "deletes nothing",
}

_ALL = frozenset(AgentAction)

ALLOWED: dict[AgentState, frozenset[AgentAction]] = {
    AgentState.STARTING: frozenset({AgentAction.READ, AgentAction.ACK}),
    AgentState.CLONING: frozenset({AgentAction.ACK}),
    AgentState.SERVING: _ALL,
    AgentState.DRAINING: _ALL - {AgentAction.BEGIN},
    # A requested commit waits for ZooKeeper until its own timeout; inserts need this replica alone.
    AgentState.SUSPENDED: frozenset({AgentAction.INSERT, AgentAction.COMMIT, AgentAction.READ}),
    AgentState.FENCED: frozenset(),
    AgentState.STOPPED: frozenset(),
    AgentState.STOPPING: frozenset({AgentAction.COMMIT, AgentAction.ACK}),
}


def require(state: AgentState, action: AgentAction, replica: str, reason: str = "") -> None:
    """Raise unless an agent in ``state`` does ``action``.

    Raises:
        StandbyError: For reads; the reader should go on with another replica.
        UnavailableError: Otherwise; repeat the call here later, or elsewhere.
    """
    if action in ALLOWED[state]:
        return
    reads = {AgentAction.READ, AgentAction.LATEST}
    kind: type[TidelockError] = StandbyError if action in reads else UnavailableError
    why = f" ({reason})" if reason else ""
    msg = (
        f"replica {replica} is {state.value}{why} and {_NOT_NOW[action]} now; try again, or use another "
        "replica"
    )
    raise kind(msg, replica=replica, state=state.value)


def stopped(replica: str, reason: str) -> UnavailableError:
    """Return the error for a client whose request has found a reason for the agent to stop."""
    return UnavailableError(
        f"replica {replica} is {AgentState.STOPPED.value} ({reason}); use another replica",
        replica=replica,
        state=AgentState.STOPPED.value,
    )


@dataclass(slots=True, eq=False)
class Condition:
    """The current state of the agent, shared by all who need it; and whether it allows an action.

    Attributes:
        replica: Id of the replica.
        state: The state.
        reason: Why it is in this state, if a reason is known.
        stuck: Why this replica begins no transaction, "" while it does: it applies nothing, so it could not
            show a client what it has committed, or its disk is full and another one has room.
        incomplete: Parts of its clone are missing that are visible there. It answers no reads, whatever its
            state: a connection that is lost meanwhile does not bring the parts.
        fetches: Parts of its clone are missing, also those that only readers of the past need. It stands for
            no other replica.
    """

    replica: str
    state: AgentState = AgentState.STARTING
    reason: str = ""
    stuck: str = ""
    incomplete: bool = False
    fetches: bool = False

    def require(self, action: AgentAction) -> None:
        """Raise unless the agent does ``action`` now.

        Raises:
            UnavailableError: Also a begin on a replica that is stuck. Others as :func:`require`.
            StandbyError: Also a read on a replica that is incomplete.
        """
        require(self.state, action, self.replica, self.reason)
        if self.incomplete and action is AgentAction.READ:
            raise StandbyError(
                f"replica {self.replica} has a clone whose parts are not all here, and answers no reads now; "
                "try again, or use another replica",
                replica=self.replica,
                state=self.state.value,
            )
        if self.stuck and action is AgentAction.BEGIN:
            raise UnavailableError(
                f"replica {self.replica} begins no transaction ({self.stuck}); use another replica",
                replica=self.replica,
                state=self.state.value,
            )

    def allows(self, action: AgentAction) -> bool:
        """Return whether the agent does ``action`` now."""
        return action in ALLOWED[self.state]
