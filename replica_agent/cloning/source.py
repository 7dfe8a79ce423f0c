"""The peer that sends its catalog to a replica that clones: writes the manifest, and hands it out in ranges.

A manifest is asked for under a name that the asking replica chooses, so the request may be repeated: the
first one begins the work, a later one learns that it is done. A replica that asks under another name has
given up the one before. Nothing is promised to last: a peer that was
started again has forgotten it, and the replica asks again, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tidelock.csnlog import faults
from tidelock.errors import BadRequestError, DiskFullError, UnavailableError
from tidelock.replica_agent.cloning.manifest import ManifestFacts, write_manifest
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog_schema import FORMAT
from tidelock.replication.core.room import DiskUse
from tidelock.replication.disk_room import DiskRoom
from tidelock.wire.peers import CloneManifest

MANIFEST = faults.step("agent.clone_manifest")

_log = structlog.get_logger("clone")


@dataclass(slots=True)
class _Manifest:
    path: Path
    made: asyncio.Task[ManifestFacts]
    given_up: threading.Event
    used: float


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ManifestSource:
    """The manifests that this replica has made for others.

    Attributes:
        room: The room on the own disk, whose reserve no manifest may use.
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    room: DiskRoom
    clock: Callable[[], float]
    _manifests: dict[str, _Manifest] = field(default_factory=dict, init=False)
    #: Distinguishes the files: one of the same name may still be under deletion.
    _files: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False)

    async def manifest(self, name: str) -> CloneManifest:
        """Return what is known of a manifest; the first request for it begins to write it.

        Raises:
            UnavailableError: Too many manifests are in use, there is no room for one, or it could not be
                written.
        """
        await self.forget_unused()
        known = self._manifests.get(name)
        if known is None:
            known = self._begin(name)  # at once: another request for it may come while a former one ends
            for other in list(self._manifests):
                if other != name and _asking(other) == _asking(name):
                    await self.end(other)
        known.used = self.clock()
        if not known.made.done():
            return CloneManifest(ready=False, format=FORMAT)
        error = known.made.exception()
        if error is not None:
            await self.end(name)
            raise UnavailableError(f"the catalog could not be written for a clone: {error}") from error
        facts = known.made.result()
        return CloneManifest(
            ready=True, format=FORMAT, csn=facts.csn, length=facts.length, checksum=facts.checksum
        )

    def _begin(self, name: str) -> _Manifest:
        others = [one for other, one in self._manifests.items() if _asking(other) != _asking(name)]
        if len(others) >= self.settings.clone_manifests_max:
            raise UnavailableError(
                f"this replica sends its catalog to {len(others)} others already "
                f"(clone_manifests_max={self.settings.clone_manifests_max}); try another one, or later"
            )
        # A manifest is never larger than its catalog.
        size = (self.settings.data_dir / "catalog.db").stat().st_size
        try:
            self.room.admit(DiskUse.NEW, size * (1 + sum(not one.made.done() for one in others)))
        except DiskFullError as error:
            raise UnavailableError(f"no room to write the catalog for a clone: {error.message}") from error
        path = self.settings.data_dir / "tmp" / f"clone.{name}.{next(self._files)}"
        given_up = threading.Event()
        made = asyncio.create_task(self._make(path, given_up), name=f"manifest {name}")
        self._manifests[name] = known = _Manifest(path, made, given_up, self.clock())
        return known

    async def read(self, name: str, start: int) -> bytes:
        """Return the next bytes of a manifest, at most ``fetch_range_bytes``.

        Raises:
            UnavailableError: This replica does not have it (any more).
            BadRequestError: ``start`` is outside of it.
        """
        known = self._manifests.get(name)
        if known is None or not known.made.done() or known.made.exception() is not None:
            raise UnavailableError(f"this replica has no manifest {name}; ask for a new one")
        known.used = self.clock()
        length = known.made.result().length
        if not 0 <= start < length:
            raise BadRequestError(f"byte {start} is outside a manifest of {length} bytes; begin at 0")
        try:
            return await asyncio.to_thread(_read, known.path, start, self.settings.fetch_range_bytes)
        except OSError as error:
            raise UnavailableError(
                f"the manifest {name} cannot be read ({error}); ask for a new one"
            ) from error

    async def end(self, name: str) -> None:
        """Delete a manifest that is not needed any more; no effect if there is none.

        A file that cannot be deleted stays until the next start.
        """
        known = self._manifests.pop(name, None)
        if known is not None:
            known.given_up.set()
            await asyncio.gather(known.made, return_exceptions=True)
            await asyncio.to_thread(_delete, known.path)

    async def close(self) -> None:
        """Delete all manifests; one that is being written is given up."""
        await asyncio.gather(*(self.end(name) for name in list(self._manifests)))

    async def forget_unused(self) -> None:
        """Delete the manifests that nobody has asked for in ``clone_manifest_ttl_s``."""
        over = self.clock() - self.settings.clone_manifest_ttl_s
        for name in [name for name, known in self._manifests.items() if known.used < over]:
            await self.end(name)

    async def _make(self, path: Path, given_up: threading.Event) -> ManifestFacts:
        await MANIFEST.before()
        facts = await asyncio.to_thread(write_manifest, self.settings.data_dir, path, given_up.is_set)
        await MANIFEST.after()
        _log.info("clone_manifest", csn=facts.csn, bytes=facts.length)
        return facts


def _asking(name: str) -> str:
    """Return the replica that asks for a manifest, by the name that it has made."""
    return name.rpartition("-")[0]


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), length, start)


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("clone_manifest_left", path=str(path), reason=str(error))
