"""Makes parts durable: many small ones into one pack file, with one fsync per natural batch.

Used for the parts of this replica's own transactions when they are sealed, and for parts that peers push.
While one batch is being written the next one collects. Packs are named in the catalog and created some at a
time, before their first byte; the rows of their parts are not forced, since a pack says itself what it holds
(rules stage and write-behind).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId, ReplicaId, Tid, part_id
from tidelock.errors import TidelockError
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.pack_index import PackIndex, encode
from tidelock.replication.core.model import Location, PartMeta
from tidelock.replication.partfs import PartFs

PACK = faults.step("agent.pack")

#: Packs that are named and created together: two forced writes for so many batches.
PACKS_MAX = 64


class StagedBytes(msgspec.Struct, frozen=True):
    """A small part in memory, with the transaction that made it."""

    meta: PartMeta
    data: bytes
    tid: Tid


class _Waiting(msgspec.Struct, frozen=True):
    parts: Sequence[StagedBytes]
    prepared: Sequence[Tid]
    done: asyncio.Future[None]


class PartNumbers:
    """Numbers of the parts, manifests and packs that this boot makes."""

    def __init__(self, replica: ReplicaId, boot: int) -> None:
        """Start at 1 for a new boot."""
        self.replica = replica
        self.boot = boot
        self._counter = itertools.count(1)

    def next(self) -> PartId:
        """Return the next id; it is never given again. Safe in any thread."""
        return part_id(self.replica, self.boot, next(self._counter))


@dataclass(slots=True, kw_only=True, eq=False)
class Stager:
    """Writes the parts that it receives in batches; one batch at a time."""

    catalog: Catalog
    files: PartFs
    numbers: PartNumbers
    batch_bytes_max: int
    _waiting: list[_Waiting] = field(default_factory=list, init=False)
    #: Packs that are named in the catalog; those of the first list are not created, or were discarded.
    _named: list[str] = field(default_factory=list, init=False)
    _empty: list[str] = field(default_factory=list, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    async def store(self, parts: Sequence[StagedBytes], prepared: Sequence[Tid]) -> None:
        """Return when the parts' bytes and rows, and the prepared marks, are durable.

        Raises:
            DiskFullError, UnavailableError: Nothing of this call is known to the catalog.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(parts, prepared, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="stager")
        await done

    async def _work(self) -> None:
        while self._waiting:
            batch = self._take()
            try:
                await self._write(batch)
            except Exception as error:
                for item in batch:
                    if not item.done.done():
                        item.done.set_exception(error)
            else:
                for item in batch:
                    if not item.done.done():
                        item.done.set_result(None)

    def _take(self) -> list[_Waiting]:
        size, count = 0, 0
        for item in self._waiting:
            size += sum(part.meta.length for part in item.parts)
            if count and size > self.batch_bytes_max:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _write(self, batch: Sequence[_Waiting]) -> None:
        parts = self._absent(part for item in batch for part in item.parts)
        prepared = [tid for item in batch for tid in item.prepared]
        if not parts:
            await self.catalog.write(lambda db: jobs.add_staged(db, (), prepared))
            return
        path = await self._pack()
        try:
            await PACK.before()
            staged, length = await asyncio.to_thread(self._fill, path, parts, prepared)
            await PACK.after()
            job = partial(jobs.add_staged, parts=staged, prepared=prepared, file_bytes=length)
            unused = await self.catalog.repeatable(job)
        except Exception:
            await self._discard(path)
            raise
        self.catalog.late_removals.update(unused)

    async def _pack(self) -> str:
        """Return an empty pack; its name is durable in the catalog and in its folder."""
        if not self._empty:
            if not self._named:
                named = self.files.pack_paths([self.numbers.next() for _ in range(PACKS_MAX)])
                await self.catalog.write(partial(jobs.name_packs, paths=named))
                self._named = named
            await asyncio.to_thread(self.files.create_packs, self._named)
            self._empty, self._named = self._named, []
        return self._empty.pop()

    def _fill(
        self, path: str, parts: Sequence[StagedBytes], prepared: Sequence[Tid]
    ) -> tuple[list[jobs.StagedPart], int]:
        """Write the pack; return what it holds, and its length."""
        staged: list[jobs.StagedPart] = []

        def index(locations: Sequence[Location]) -> bytes:
            placed = zip(parts, locations, strict=True)
            staged.extend(jobs.StagedPart(part.meta, at, part.tid) for part, at in placed)
            return encode(PackIndex(staged, prepared))

        written = self.files.write_pack(path, [part.data for part in parts], index)
        return staged, written.length

    async def _discard(self, path: str) -> None:
        """Free the space of a pack that no row names; a later batch uses its name."""
        if self.catalog.reader.names_file(path):  # stored, although an error came
            return
        self._named.append(path)
        with contextlib.suppress(TidelockError):
            await asyncio.to_thread(self.files.delete, [path])
            await asyncio.to_thread(self.files.empty_trash)

    def _absent(self, parts: Iterable[StagedBytes]) -> list[StagedBytes]:
        """Leave out the parts that exist here: a small part may arrive by push and by fetch at once."""
        wanted = {part.meta.part: part for part in parts}
        held = self.catalog.reader.held(wanted)
        return [part for name, part in wanted.items() if name not in held]
