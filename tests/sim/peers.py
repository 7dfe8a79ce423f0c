"""The client of the other agents, over the simulated network instead of HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tests.sim.life import LIFE
from tests.sim.network import Door, Network, Serve
from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, Tid
from tidelock.csnlog.core.results import HomeAnswer
from tidelock.errors import TidelockError, UnavailableError
from tidelock.replication.core.model import Held, Location, PartMeta
from tidelock.replication.core.part_frames import LackedPart, PartFrame, SentPart, encode
from tidelock.replication.peers import PeerClient, answer_of, word_of
from tidelock.wire.peers import CloneManifest, PeerStatus, StateDigest

if TYPE_CHECKING:
    from tidelock.replica_agent.lifecycle.local import Local
    from tidelock.replica_agent.services.bundle import Services


def _frame(local: Local, part: PartId) -> PartFrame:
    """Return what a replica says of a part that another one asks for among many."""
    row = local.catalog.reader.part(part)
    if row is None or row.file is None or row.state != "held":
        return LackedPart(part, "it is not held here")
    location = Location(row.file, row.offset, row.length, row.blocks)
    try:
        return SentPart(part, local.files.read(location))
    except TidelockError as error:
        return LackedPart(part, error.message)


class SimPeerClient(PeerClient):
    """The handlers of the routes /peer/v1 and /parts, called by name."""

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(**options)
        self._network = network
        self._life = LIFE.get()

    async def stage(self, api: str, body: Sequence[bytes], *, timeout_s: float) -> Held:
        """Push; see :class:`PeerClient`."""
        raw = b"".join(body)

        async def serve(services: Services) -> Held:
            services.peers.admit_push(len(raw))
            return await services.peers.stage(raw)

        held: Held = await self._ask(api, "stage", serve, timeout_s)
        return held

    async def forget(self, api: str, tids: Iterable[Tid]) -> None:
        """Hint; see :class:`PeerClient`."""
        gone = list(tids)
        await self._ask(api, "forget", lambda services: services.peers.forget(gone, []))

    async def drop(self, api: str, parts: Iterable[PartId]) -> None:
        """Hint; see :class:`PeerClient`."""
        gone = list(parts)
        await self._ask(api, "forget", lambda services: services.peers.forget([], gone))

    async def hint(self, api: str, tid: Tid, holder: ReplicaId, parts: Sequence[PartMeta]) -> None:
        """Hint; see :class:`PeerClient`."""

        async def serve(services: Services) -> None:
            services.peers.receiver.hint(tid, holder, parts)

        await self._ask(api, "hint", serve)

    async def outcome(self, api: str, tid: Tid) -> HomeAnswer:
        """Ask a home; see :class:`PeerClient`."""

        async def serve(services: Services) -> str:
            return word_of(services.peers.outcomes.own(tid))

        return answer_of(str(await self._ask(api, "outcome", serve)))

    async def status(self, api: str) -> PeerStatus:
        """Ask how far it is; see :class:`PeerClient`."""

        async def serve(services: Services) -> PeerStatus:
            own = services.peers.session
            state = services.condition.state.value
            clock_ms = services.peers.clocks.own_ms()
            reached = services.peers.waiters.reached
            return PeerStatus(own.replica, own.disk, own.boot, state, reached, time_ms=clock_ms)

        found: PeerStatus = await self._ask(api, "status", serve)
        return found

    async def digest(self, api: str, csn: Csn, *, timeout_s: float) -> StateDigest:
        """Ask what it shows; see :class:`PeerClient`."""
        found: StateDigest = await self._ask(
            api, "digest", lambda services: services.peers.digest(csn), timeout_s
        )
        return found

    async def clone(self, api: str, name: str) -> CloneManifest:
        """Have a catalog written; see :class:`PeerClient`."""
        made: CloneManifest = await self._ask(api, "clone", lambda services: services.peers.clone(name))
        return made

    async def read_clone(self, api: str, name: str, start: int) -> bytes:
        """Bytes of a catalog; see :class:`PeerClient`."""

        async def serve(services: Services) -> bytes:
            return await services.peers.manifests.read(name, start)

        data: bytes = await self._ask(api, "catalog", serve)
        return data

    async def end_clone(self, api: str, name: str) -> None:
        """Hint; see :class:`PeerClient`."""
        await self._ask(api, "end of a clone", lambda services: services.peers.manifests.end(name))

    async def refuses(self, api: str) -> bool:
        """Return whether no process listens; see :class:`PeerClient`."""
        return self._network.refuses(self._life.host.name, api.partition(":")[0])

    async def read_part(
        self, data: str, meta: PartMeta, start: int, end: int, *, silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Bytes of a part, in two pieces; see :class:`PeerClient`."""

        async def serve(local: Local) -> bytes:
            row = local.catalog.reader.part(meta.part)
            if row is None or row.file is None or row.state != "held":
                raise UnavailableError(f"part {meta.part} is not held here")
            location = Location(row.file, row.offset, row.length, row.blocks)
            return local.files.read(location, start, end - start)

        if start == end:
            return
        raw = await self._ask(data, "part", serve, timeout_s=silence_s, door=Door.DATA)
        yield raw[: len(raw) // 2]
        yield raw[len(raw) // 2 :]

    async def _stream_parts(
        self, data: str, parts: Sequence[PartId], silence_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Bytes of an answer about many parts, in two pieces, or cut off in the middle."""

        async def serve(local: Local) -> bytes:
            return b"".join([encode(_frame(local, part)) for part in parts])

        raw: bytes = await self._ask(data, "parts", serve, timeout_s=silence_s, door=Door.DATA)
        end = self._network.cut_off(len(raw))
        yield raw[: end // 2]
        yield raw[end // 2 : end]
        if end < len(raw):
            raise UnavailableError(f"{data} broke off")

    async def _ask(
        self, address: str, what: str, serve: Serve, timeout_s: float | None = None, door: Door = Door.API
    ) -> Any:
        if self._life.dead:
            raise UnavailableError("this process is gone")
        own, other = self._life.host.name, address.partition(":")[0]
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._network.call(own, other, what, serve, timeout_s=timeout_s, door=door)
