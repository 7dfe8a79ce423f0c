"""The replica that clones: gets a peer's catalog and replaces its own by that (rule clone).

Its session shows the state ``cloning`` and a new disk, and its progress holds tail and horizon where they
are. So whatever position the catalog of a peer has that counts, the log goes on behind it, and no
part that is visible there is collected. When the catalog is replaced this boot ends. The next one follows the
log from the position of the clone, and fetches the parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from tidelock.csnlog import faults
from tidelock.csnlog.cluster.members import MemberView
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.skipped import Skips
from tidelock.csnlog.core.store import Store
from tidelock.errors import (
    ClusterMismatchError,
    DiskFullError,
    TidelockError,
    UnavailableError,
    UpgradeNeededError,
)
from tidelock.replica_agent.cloning import manifest as manifests
from tidelock.replica_agent.cloning.sources import ClonePeer, is_usable, peers_to_ask
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog import Catalog
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replication.backoff import wait_s
from tidelock.replication.core.room import DiskUse
from tidelock.replication.partfs import PartFs, ScratchFile
from tidelock.replication.peers import PeerClient
from tidelock.wire.peers import CloneManifest

RECEIVE = faults.step("agent.clone_receive")
INSTALL = faults.step("agent.clone_install")

_log = structlog.get_logger("clone")

T = TypeVar("T")

#: Pause between two questions whether a manifest is written.
_POLL_S = 0.2


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Joiner:
    """One clone, up to the replaced catalog.

    Attributes:
        replica: This replica.
        disk: The id that the data directory has from then on, as the session shows it.
        members: The registered replicas.
        skips: The records that operators have had skipped.
    """

    replica: ReplicaId
    disk: str
    settings: AgentSettings
    store: Store
    catalog: Catalog
    files: PartFs
    client: PeerClient
    members: Callable[[], Mapping[ReplicaId, MemberView]]
    skips: Skips
    _trouble: str = field(default="no other replica serves", init=False)

    async def run(self) -> Csn:
        """Replace the catalog, however long that takes; return the CSN of the new one.

        Raises:
            UpgradeNeededError: No peer sends its catalog but some that have a newer version than this
                replica.
            ClusterMismatchError: The peers have another history than this replica.
        """
        rounds = 0
        while True:
            too_new: UpgradeNeededError | None = None
            for peer in peers_to_ask(self.members(), self.replica, rounds):
                try:
                    if (csn := await self._from(peer)) is not None:
                        return csn
                except UpgradeNeededError as error:
                    too_new = error
            if too_new is not None:
                raise too_new
            rounds += 1
            if rounds == 1:
                _log.warning("clone_waits", reason=self._trouble)
            await asyncio.sleep(wait_s(rounds, self.settings.retry_wait_max_s))

    async def _from(self, peer: ClonePeer) -> Csn | None:
        """Clone from one peer; None if another one, or this one later, has to be asked.

        Raises:
            UpgradeNeededError: The peer has a newer version.
            ClusterMismatchError: The peer has another history.
        """
        name = f"{self.replica}-{secrets.token_hex(8)}"
        try:
            facts = await self._asked(peer, name)
            file = await self._receive(peer, name, facts)
            try:
                await self._check_usable(facts.csn)
                await self._install(file.path)
            finally:
                file.remove()
        except (UpgradeNeededError, ClusterMismatchError):
            raise
        except DiskFullError as error:  # of the own disk: a peer whose disk is full is unavailable
            self._trouble = error.message
            _log.error("clone_disk_full", reason=error.message)
            return None
        except TidelockError as error:
            self._failed(peer, error.message)
            return None
        except (OSError, faults.Injected, faults.LostReply) as error:
            self._failed(peer, str(error))
            return None
        finally:
            with contextlib.suppress(TidelockError):
                await self.client.end_clone(peer.api, name)
        _log.info("clone_installed", source=peer.replica, csn=facts.csn, bytes=facts.length)
        return facts.csn

    def _failed(self, peer: ClonePeer, reason: str) -> None:
        self._trouble = f"{peer.replica}: {reason}"
        _log.warning("clone_not_sent", source=peer.replica, reason=reason)

    async def _asked(self, peer: ClonePeer, name: str) -> CloneManifest:
        """Ask until the manifest is written."""
        while True:
            facts = await self._repeated(partial(self.client.clone, peer.api, name))
            if facts.format:
                manifests.check_format(facts.format)
            if facts.ready:
                break
            await asyncio.sleep(_POLL_S)
        _log.info("clone_begins", source=peer.replica, csn=facts.csn, bytes=facts.length)
        return facts

    async def _receive(self, peer: ClonePeer, name: str, facts: CloneManifest) -> ScratchFile:
        """Get the file, and check it as a whole."""
        await RECEIVE.before()
        file = await asyncio.to_thread(self.files.scratch, use=DiskUse.COMMITTED)
        try:
            await self._fill(file, peer, name, facts.length)
            await asyncio.to_thread(manifests.check_manifest, file.path, facts.checksum)
            await asyncio.to_thread(manifests.check_skips, file.path, self.skips)
            await RECEIVE.after()
        except BaseException:
            await asyncio.to_thread(file.remove)
            raise
        return file

    async def _fill(self, file: ScratchFile, peer: ClonePeer, name: str, length: int) -> None:
        """Get the bytes, range by range."""
        received = 0
        while received < length:
            data = await self._repeated(partial(self.client.read_clone, peer.api, name, received))
            await asyncio.to_thread(file.write, data)
            received += len(data)

    async def _repeated(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request that may be repeated, until it has failed a few times."""
        for failures in range(1, self.settings.clone_retries + 1):
            try:
                return await request()
            except UnavailableError:
                await asyncio.sleep(wait_s(failures, self.settings.retry_wait_max_s))
        return await request()

    async def _check_usable(self, csn: Csn) -> None:
        """Raise unless the log goes on from a catalog at this CSN.

        Tail and horizon are read as they are now: behind the registration of this clone they do not move.

        Raises:
            UnavailableError: Another peer is to be asked, or this one later.
        """
        tail, horizon = await self.store.get(tree.TAIL), await self.store.get(tree.HORIZON)
        if not isinstance(tail, Ok) or not isinstance(horizon, Ok):
            raise UnavailableError("ZooKeeper does not answer; the clone begins again")
        bounds = codec.decode_csn(tail.value.data), codec.decode_csn(horizon.value.data)
        if not is_usable(csn, *bounds):
            raise UnavailableError(f"it is at CSN {csn}, tail and horizon are {bounds[0]} and {bounds[1]}")

    async def _install(self, path: Path) -> None:
        present = await asyncio.to_thread(self.files.present)
        named, _ = await self.catalog.read(CatalogReader.files)
        unknown = present - named
        found = await asyncio.to_thread(manifests.find_parts, self.files.data_dir, path, unknown)
        await INSTALL.before()
        await self.catalog.write(
            partial(manifests.install, manifest=path, disk=self.disk, files=present, found=found)
        )
        await INSTALL.after()
