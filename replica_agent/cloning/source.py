"""The peer that sends its catalog to a replica that clones: writes the manifest, and hands it out in ranges.

A manifest is asked for under a name that the asking replica chooses, so the request may be repeated: the
first one begins the work, a later one learns that it is done. A replica that asks under another name has
given up the one before. Nothing is promised to last: a peer that was
started again has forgotten it, and the replica asks again, here or elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tidelock.csnlog import faults
from tidelock.errors import BadRequestError, UnavailableError
from tidelock.replica_agent.cloning.manifest import ManifestFacts, write_manifest
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.wire.peers import CloneManifest

MANIFEST = faults.step("agent.clone_manifest")

_log = structlog.get_logger("clone")


@dataclass(slots=True)
class _Manifest:
    path: Path
    made: asyncio.Task[ManifestFacts]
    used: float


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ManifestSource:
    """The manifests that this replica has made for others.

    Attributes:
        clock: Monotonic seconds.
    """

    settings: AgentSettings
    clock: Callable[[], float]
    _manifests: dict[str, _Manifest] = field(default_factory=dict, init=False)

    async def manifest(self, name: str) -> CloneManifest:
        """Return what is known of a manifest; the first request for it begins to write it.

        Raises:
            UnavailableError: Too many manifests are in use, or it could not be written.
        """
        self.forget_unused()
        known = self._manifests.get(name)
        if known is None:
            for former in [other for other in self._manifests if _asking(other) == _asking(name)]:
                await self.end(former)
            if len(self._manifests) >= self.settings.clone_manifests_max:
                raise UnavailableError(
                    f"this replica sends its catalog to {len(self._manifests)} others already "
                    f"(clone_manifests_max={self.settings.clone_manifests_max}); try another one, or later"
                )
            path = self.settings.data_dir / "tmp" / f"clone.{name}"
            made = asyncio.create_task(self._make(path), name=f"manifest {name}")
            known = self._manifests[name] = _Manifest(path, made, self.clock())
        known.used = self.clock()
        if not known.made.done():
            return CloneManifest(ready=False)
        error = known.made.exception()
        if error is not None:
            await self.end(name)
            raise UnavailableError(f"the catalog could not be written for a clone: {error}") from error
        facts = known.made.result()
        return CloneManifest(ready=True, csn=facts.csn, length=facts.length, checksum=facts.checksum)

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
        return await asyncio.to_thread(_read, known.path, start, self.settings.fetch_range_bytes)

    async def end(self, name: str) -> None:
        """Delete a manifest that is not needed any more; no effect if there is none."""
        known = self._manifests.pop(name, None)
        if known is not None:
            await asyncio.gather(known.made, return_exceptions=True)
            known.path.unlink(missing_ok=True)

    async def close(self) -> None:
        """Delete all manifests."""
        for name in list(self._manifests):
            await self.end(name)

    async def _make(self, path: Path) -> ManifestFacts:
        await MANIFEST.before()
        facts = await asyncio.to_thread(write_manifest, self.settings.data_dir, path)
        await MANIFEST.after()
        _log.info("clone_manifest", csn=facts.csn, bytes=facts.length)
        return facts

    def forget_unused(self) -> None:
        """Delete the manifests that nobody has asked for in ``clone_manifest_ttl_s``."""
        over = self.clock() - self.settings.clone_manifest_ttl_s
        for name, known in list(self._manifests.items()):
            if known.used < over and known.made.done():
                del self._manifests[name]
                known.path.unlink(missing_ok=True)


def _asking(name: str) -> str:
    """Return the replica that asks for a manifest, by the name that it has made."""
    return name.rpartition("-")[0]


def _read(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), length, start)
