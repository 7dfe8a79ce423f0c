"""The receiving side of replication: the effect of a hint, and its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableName, Tid
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replication.core.model import PartMeta, Wanted
from tidelock.replication.partfs import PartFs

TID = Tid(Csn(4), ReplicaId("r1"), 1, 7)


def _part(name: str, length: int) -> PartMeta:
    return PartMeta(PartId(name), TableName("db.t"), "", 1, length, "0" * 32)


@pytest.mark.parametrize(
    ("decided", "held", "wanted"),
    [
        (False, set(), ["one", "other"]),
        (False, {"other"}, ["one"]),
        (True, set(), []),
    ],
    ids=["running", "held", "decided"],
)
def test_a_hint_wants_parts_of_running_transactions(
    *, decided: bool, held: set[str], wanted: list[str]
) -> None:
    """The record of a decided transaction has requested all its parts: a missing part was deleted since."""
    asked: list[Wanted] = []
    around: Any = SimpleNamespace(
        reader=SimpleNamespace(
            held=held.intersection, outcome=lambda tid: object() if decided and tid == str(TID) else None
        ),
        want=asked.append,
    )
    acceptor = PushReceiver(
        replica=ReplicaId("r2"),
        disk="d",
        boot=1,
        cluster_id="c",
        catalog=around,
        files=PartFs(Path.cwd()),
        stager=around,
        fetcher=around,
        waiters=around,
        cut=lambda _: None,
        arrived=lambda _: None,
    )
    acceptor.hint(TID, ReplicaId("r3"), [_part("one", 1), _part("other", 1 << 30)])
    assert [item.meta.part for item in asked] == wanted
    assert all(item.csn is None and item.tid == TID for item in asked)
    assert all(item.holders == ("r3", TID.home) for item in asked)
