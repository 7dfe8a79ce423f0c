"""Changes of the members, as an operator makes them: repeated until they are made, and checked."""

from __future__ import annotations

import re
from collections.abc import Callable

from chaos.faults.reviving import serve_again
from chaos.watching.seeing import status
from chaos.watching.waiting import STEP_TIMEOUT_S, comes_true, until
from chaos.world import World
from tidelock.client import Database
from tidelock.errors import MembershipError, TidelockError, UnavailableError
from tidelock.testing import Node
from tidelock.wire.members import MembersAnswer


def fresh_name(world: World) -> str:
    """Return a name that no replica has had: ids are never used again."""
    known = {*world.cluster.replicas}
    for replica in world.cluster.replicas:
        known |= {row["id"] for row in (status(world, replica) or {}).get("replicas", [])}
    numbers = [int(found[1]) for name in known if (found := re.fullmatch(r"r(\d+)", name))]
    return f"r{max(numbers, default=0) + 1}"


def member(world: World, replica: str) -> str | None:
    """Return the state of a member as another replica says: serving, struck, removed; None: unknown."""
    for other in world.cluster.replicas:
        for row in (status(world, other) or {}).get("replicas", []) if other != replica else ():
            if row["id"] == replica:
                return str(row["member"])
    return None


def change(world: World, what: str, made: Callable[[Database], MembersAnswer]) -> None:
    """Have the members changed. It is asked for again if the replica that is asked dies, or refuses it.

    It may refuse what it does later: while the others do not have all that the member has.

    Raises:
        TidelockError: The change cannot be made, or was not made in time.
    """
    refused: list[TidelockError] = []

    def done() -> bool:
        try:
            with world.cluster.connect() as db:
                made(db)
        except TidelockError as error:
            if not error.retriable and not isinstance(error, MembershipError):
                raise
            refused[:] = [error]
            return False
        return True

    if not comes_true(done, STEP_TIMEOUT_S):
        raise UnavailableError(f"expected that {what}, found after {STEP_TIMEOUT_S:.0f} s: {refused[-1]}")


def added(world: World, register: Callable[[str], Node]) -> str:
    """Register a fresh member, start it, and wait until it serves; return its name.

    Args:
        world: The run.
        register: Registers the name and lays the member out: `Cluster.add`, or as much.
    """
    fresh = fresh_name(world)

    def registered() -> bool:
        try:
            register(fresh)
        except UnavailableError:
            return False
        return True

    until(registered, what=f"{fresh} is registered")
    serve_again(world, fresh)
    return fresh


def removed(world: World, replica: str) -> None:
    """Drain a member, stop it, and remove it for good. It is started if it is dead, as an operator would."""
    change(world, f"{replica} drains", lambda db: db.membership.drain(replica))
    until(lambda: _drained(world, replica), what=f"{replica} is drained")
    world.cluster.node(replica).stop()
    change(world, f"{replica} is removed", lambda db: db.membership.remove(replica))
    world.cluster.forget(replica)


def _drained(world: World, replica: str) -> bool:
    """Return whether a replica has nothing open any more; it is started if it is dead, to say so."""
    node = world.cluster.node(replica)
    if not node.running:
        node.start(wait=False)
    found = status(world, replica)
    return bool(found and found["state"] == "draining" and not found["open_transactions"])
