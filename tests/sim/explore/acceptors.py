"""The product's acceptor for the explorers: what a peer does with one push; all around it is modelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.sim.explore.replay import Replays, Returned
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid, part_id
from tidelock.replica_agent.replicas.receiver import PushReceiver
from tidelock.replica_agent.storage.pack_writer import StagedBytes
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import Held, PartMeta, SealedTid
from tidelock.replication.core.wire import encode

HOME = ReplicaId("r1")
DATA = b"part"


def tid_of(tx: int) -> Tid:
    """The tid of a transaction by its number."""
    return Tid(Csn(1), HOME, 1, tx + 1)


def part_of(tx: int) -> PartMeta:
    """Its one part."""
    return PartMeta(part_id(HOME, 1, tx + 1), TableId("d.orders"), "", 1, len(DATA), checksum(DATA))


class _Storing(Exception):  # noqa: N818 - no error: it ends a run at the write that the peer waits for
    """The acceptor waits for these to be durable."""

    def __init__(self, parts: Iterable[PartId]) -> None:
        super().__init__()
        self.parts = frozenset(parts)


class _Stager:
    def __init__(self, *, stored: bool) -> None:
        self._stored = stored

    async def store(self, parts: Sequence[StagedBytes], prepared: Sequence[Tid]) -> None:
        if not self._stored:
            raise _Storing(one.meta.part for one in parts)


class Acceptors:
    """Each push is taken once for each state of a peer's catalog."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._known: dict[tuple[object, ...], Held | None] = {}

    def stage(
        self, peer: ReplicaId, disk: str, rows: frozenset[int], txs: tuple[int, ...], *, stored: bool
    ) -> Held | None:
        """Take a push of these transactions, with the parts of ``rows`` in the catalog.

        Returns:
            The answer, or None when something is to be made durable first; ``stored`` says that it is.
        """
        key = (peer, disk, rows, txs, stored)
        if key not in self._known:
            turn = self._replays.run(self._acceptor(peer, disk, rows, stored).stage(_push(txs)))
            if isinstance(turn, Returned):
                self._known[key] = turn.value
            else:
                assert isinstance(turn.error, _Storing), turn  # type: ignore[union-attr]
                self._known[key] = None
        return self._known[key]

    def _acceptor(self, peer: ReplicaId, disk: str, rows: frozenset[int], stored: bool) -> PushReceiver:
        durable = {part_of(tx).part for tx in rows}

        def held(parts: Iterable[PartId]) -> set[PartId]:
            return durable & set(parts)

        around: Any = SimpleNamespace(
            reader=SimpleNamespace(held=held, nameless=lambda _: set(), committed=lambda _: set()),
            reached=Csn(1),
            want=lambda _: None,
            is_wanted=lambda _: False,
            coming_bytes=lambda: 0,
            room=SimpleNamespace(admit=lambda *_: None),
        )
        return PushReceiver(
            replica=peer,
            disk=disk,
            boot=1,
            cluster_id="c",
            catalog=around,
            files=around,
            stager=_Stager(stored=stored),  # type: ignore[arg-type]
            fetcher=around,
            cut=lambda _: None,
            waiters=around,
            arrived=lambda _: None,
        )


def _push(txs: tuple[int, ...]) -> bytes:
    body = encode(
        home=HOME,
        boot=1,
        cluster_id="c",
        tids=[SealedTid(tid_of(tx), (part_of(tx),)) for tx in txs],
        inline={part_of(tx).part: DATA for tx in txs},
    )
    return b"".join(body)
