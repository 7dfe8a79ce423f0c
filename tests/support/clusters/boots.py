"""A cluster in memory and boots that begin in it, for the tests of both."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.support.zookeeper.store_suite import done, node
from tidelock.csnlog.cluster.bootstrap import KnownState, OwnSession, open_session
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import MemberState, Progress, SessionState
from tidelock.csnlog.core.store import SetData
from tidelock.csnlog.testing.memory_store import MemoryEnsemble, MemoryStore, StoreRequest

R1, R2, R3, R9 = (ReplicaId(name) for name in ("r1", "r2", "r3", "r9"))
SETTINGS: dict[str, Any] = {"replicas": [R1, R2, R3], "copies": 2, "epoch_limit": 1000, "time_ms": 5}
MEMBER = MemberState(api="h1:1", data="h1:2", rack="rack7")


def any_request(_: StoreRequest) -> bool:
    """Faults apply to reads as well as to writes."""
    return True


def nonces(prefix: str) -> Callable[[], str]:
    """Return nonces that are unique."""
    numbers = itertools.count(1)
    return lambda: f"{prefix}{next(numbers)}"


async def begin(store: MemoryStore, replica: ReplicaId = R1, **changed: Any) -> OwnSession:
    """Begin a boot of a replica, with an empty catalog unless another state is given."""
    settings: dict[str, Any] = {
        "member": MEMBER,
        "disk": "disk1",
        "known": KnownState(),
        "nonce": nonces(f"{store.name}-"),
        "replace_disk": True,
        "timeout_s": 20.0,
    }
    return await open_session(store, replica=replica, **(settings | changed))


async def shown(store: MemoryStore, replica: ReplicaId = R1) -> tuple[SessionState, int]:
    """Return session state and fence of a replica."""
    found = await node(store, tree.session(replica))
    return codec.decode_session(found.data), found.version


async def put_session(store: MemoryStore, state: str) -> None:
    """Put replica r1 on disk1 into a state, in boot 3 and at CSN 9."""
    found = SessionState(boot=3, disk="disk1", nonce="n", state=state)
    await done(
        store,
        SetData(tree.session(R1), codec.encode_session(found)),
        SetData(tree.progress(R1), codec.encode_progress(Progress(Csn(9), Csn(9)))),
    )


def paths(ensemble: MemoryEnsemble, path: str = "") -> set[str]:
    """Return all znodes."""
    znode = ensemble.tree.get(path)
    assert znode is not None
    below = (paths(ensemble, f"{path}/{name}" if path else name) for name in znode.children)
    return {path}.union(*below)
