"""Pinned snapshots: the choice of a reader's CSN, and the promise in ZooKeeper that it stays readable.

A pin is one multi: check(csn/horizon at a version whose value is not above the pin), create(pins/<id>),
set(pins). A replica that raises the horizon checks the version of ``pins`` in the same multi as the new
horizon, so one of the two sees the other (rules pins, horizon; F6).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import decode_csn, decode_pin, encode_pin
from tidelock.csnlog.core.ids import CSN_IMPORT, Csn, ReplicaId, TableId
from tidelock.csnlog.core.log_time import STEP_BACK_MS
from tidelock.csnlog.core.model import PinState
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import Check, Create, Delete, SetData, Store
from tidelock.csnlog.log import CsnLog, LogState
from tidelock.errors import (
    BadRequestError,
    NoSuchCsnError,
    SnapshotTooOldError,
    StandbyError,
    UnavailableError,
    UnknownTransactionError,
)
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.catalog_reads import CatalogReader
from tidelock.replica_agent.storage.csn_waiters import CsnWaiters
from tidelock.replication.clocks import Clocks
from tidelock.wire.reads import SnapshotInfo

_log = structlog.get_logger("snapshots")
_TRIES = 10
#: Records after which the log's time has stepped back, if it can: each home may have had one under way.
_TICKS = 4
#: The last moment that a datetime can hold, about.
_TIME_MS_MAX = 253_402_300_799_000
#: Deletes a pin's znode whatever its version is: its id is never given again.
_ANY_VERSION = -1


@dataclass(slots=True)
class Pin:
    """One pinned snapshot of a client of this replica; ``granted`` once its znode is made."""

    id: str
    csn: Csn
    ttl_s: float
    until: float
    granted: bool = False


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Snapshots:
    """Chooses CSNs for readers and holds their pins.

    Attributes:
        copies: Returns how many durable copies a commit needs at present.
        peers: Requests the snapshot CSN of each live peer, within a short bound.
        clock: Monotonic seconds.
        clocks: The wall clocks that are known.
    """

    replica: ReplicaId
    boot: int
    copies: Callable[[], int]
    settings: AgentSettings
    store: Store
    log: CsnLog
    reader: CatalogReader
    waiters: CsnWaiters
    peers: Callable[[], Awaitable[Mapping[ReplicaId, Csn]]]
    clock: Callable[[], float]
    clocks: Clocks
    _pins: dict[str, Pin] = field(default_factory=dict, init=False)
    #: Pins that were released, or never granted: their znodes are to be deleted, if they exist.
    _leaving: dict[str, None] = field(default_factory=dict, init=False)
    #: The pins of former boots are known.
    _adopted: bool = field(default=False, init=False)
    _counter: int = field(default=0, init=False)

    async def require(self, csn: Csn, table: TableId | None = None, *, wait_s: float | None = None) -> None:
        """Return when this replica can serve ``csn``: of one table, or of all tables.

        Args:
            csn: The CSN.
            table: The only table that is read.
            wait_s: Longest wait for the CSN; None: the setting `wait_bound_s`.

        Raises:
            SnapshotTooOldError: It is below the horizon.
            NoSuchCsnError: It is above the end of the log, read after a write barrier.
            StandbyError: It was not applied here in time.
        """
        self.reader.require_kept(csn, table)
        await self.reach(csn, wait_s=wait_s)

    async def reach(self, csn: Csn, *, wait_s: float | None = None) -> None:
        """Return when this replica has applied ``csn``, for readers at this CSN or above.

        Raises:
            NoSuchCsnError, StandbyError: As :meth:`require`.
        """
        if csn <= self.waiters.reached:
            return
        await self.require_exists(csn)
        await self._applied(csn, self.settings.wait_bound_s if wait_s is None else wait_s)

    async def require_exists(self, csn: Csn) -> None:
        """Raise NoSuchCsnError if a CSN is above the end of the log, read after a write barrier."""
        if csn > max(self.log.end, self.waiters.reached):
            end = await self.log.barrier()
            if csn > end:
                msg = f"there is no CSN {csn}: the log ends at {end}; read at that one, or at an older one"
                raise NoSuchCsnError(msg, end_csn=end)

    async def _applied(self, csn: Csn, wait_s: float) -> None:
        if not await self.waiters.wait(csn, wait_s):
            msg = (
                f"replica {self.replica} is at CSN {self.waiters.reached} and did not reach {csn} "
                f"within {wait_s:g} s"
            )
            raise StandbyError(msg, snapshot_csn=self.waiters.reached)

    async def choose(self, min_csn: Csn | None) -> Csn:
        """Return the largest CSN applied here and on ``copies`` replicas in all, not below ``min_csn``.

        So a reader that fails over never has to wait longer than the bound. StandbyError if ``min_csn`` is
        not reached in time.
        """
        deadline = self.clock() + self.settings.wait_bound_s
        if min_csn is not None:
            await self.reach(min_csn)
        while True:
            others = sorted((await self.peers()).values(), reverse=True)
            own = self.waiters.reached
            needed = self.copies() - 1
            common = min(own, others[needed - 1]) if 0 < needed <= len(others) else own
            if min_csn is None or common >= min_csn:
                return max(Csn(common), Csn(1))
            if self.clock() > deadline:
                return min_csn  # it is applied here; the lag of the others only delays a failover
            await asyncio.sleep(0.02)

    async def at_time(self, at_ms: int) -> Csn:
        """Return the newest CSN whose effective time is not after ``at_ms`` (Unix, ms).

        If this replica has applied nothing newer, it may lack commits up to that time. So it first applies
        the rest of the log, which takes a write barrier. If wrong clocks have made the log's time, a tick
        first lets it step back to the true one.

        Raises:
            BadRequestError: ``at_ms`` is not a valid time.
            NoSuchCsnError: The time has not come yet.
            SnapshotTooOldError: It is before the history that is kept.
            StandbyError: The log was not applied here to its end within ``wait_bound_s``.
        """
        if not 0 <= at_ms <= _TIME_MS_MAX:
            msg = f"at_ms={at_ms} is not a time; give milliseconds since 1970"
            raise BadRequestError(msg)
        now_ms = self.clocks.now_ms()
        if at_ms > now_ms + self.settings.clock_offset_max_s * 1000:
            msg = f"{_iso(at_ms)} has not come yet, it is {_iso(now_ms)} now; give a time in the past"
            raise NoSuchCsnError(msg, end_csn=self.log.end)
        await self._let_time_step_back(now_ms)
        if at_ms >= self.reader.meta("time_ms"):
            await self._applied(await self.log.barrier(), self.settings.wait_bound_s)
        csn, oldest = self.reader.csn_at(at_ms), max(self.reader.horizon(), CSN_IMPORT)
        if csn is None or csn < oldest:
            begins = _iso(self.reader.time_of(oldest))
            msg = (
                f"{_iso(at_ms)} is before the history that is kept: it begins at {begins}, with CSN {oldest};"
                " give a later time, or a CSN"
            )
            raise SnapshotTooOldError(msg, min_csn=oldest)
        return csn

    async def _let_time_step_back(self, now_ms: int) -> None:
        """Write ticks while wrong clocks hold the log's time ahead, for at most ``wait_bound_s``.

        The next record may be one whose home read its clocks before they were right: it changes nothing, and
        takes the place of the tick if it is an own one. A time that stays ahead has a clock that is still
        wrong, and the caller goes on.
        """
        for _ in range(_TICKS):
            if self.reader.meta("time_ms") <= now_ms + STEP_BACK_MS:
                return
            self.log.tick()
            following = Csn(max(self.log.end, self.waiters.reached) + 1)
            await self.waiters.wait(following, self.settings.wait_bound_s / _TICKS)

    async def open(
        self, *, csn: Csn | None, at_ms: int | None, min_csn: Csn | None, ttl_s: float | None
    ) -> Pin:
        """Choose or check the CSN and pin it."""
        if csn is not None and at_ms is not None:
            msg = "give csn or at, not both"
            raise BadRequestError(msg)
        ttl = self.settings.snapshot_ttl_s if ttl_s is None else ttl_s
        if not 0 < ttl <= self.settings.snapshot_ttl_max_s:
            msg = (
                f"ttl_s={ttl} is outside 0..{self.settings.snapshot_ttl_max_s} (snapshot_ttl_max_s); give "
                "seconds above 0, up to that"
            )
            raise BadRequestError(msg)
        if at_ms is not None:
            csn = await self.at_time(at_ms)
        if csn is None:
            csn = await self.choose(min_csn)
        else:
            await self.require(csn)
        return await self.pin(csn, ttl)

    async def pin(self, csn: Csn, ttl_s: float) -> Pin:
        """Pin a CSN that is applied here.

        Raises:
            SnapshotTooOldError: The horizon has passed it.
            UnavailableError: Too many pins exist, or ZooKeeper does not accept this one.
        """
        if len(self._pins) >= self.settings.snapshots_max:
            msg = (
                f"clients hold {len(self._pins)} snapshots at replica {self.replica}, the limit is "
                f"snapshots_max={self.settings.snapshots_max}; close some, or use another replica"
            )
            raise UnavailableError(msg)
        self._counter += 1
        pin = Pin(f"{self.replica}-{self.boot}-{self._counter}", csn, ttl_s, self.clock() + ttl_s)
        self._pins[pin.id] = pin  # from here on it counts as in use
        try:
            await self._write(pin)
        except BaseException:
            self._leave(pin.id)  # it may have been written nevertheless
            raise
        pin.granted = True
        return pin

    async def _write(self, pin: Pin) -> None:
        path = tree.pin(pin.id)
        for _ in range(_TRIES):
            horizon = await self.store.get(tree.HORIZON)
            if not isinstance(horizon, Ok):
                break
            oldest = decode_csn(horizon.value.data)
            if oldest > pin.csn:
                msg = f"CSN {pin.csn} is below the horizon {oldest}; read at a newer CSN"
                raise SnapshotTooOldError(msg, min_csn=oldest)
            change = (
                Check(tree.HORIZON, horizon.value.version),
                Create(path, self._data(pin)),
                SetData(tree.PINS),
            )
            result = await self.log.fenced(change)
            match result:
                case Ok() | Refused(reason=Reason.NODE_EXISTS):
                    return  # the node is this pin, made by a try whose reply was lost
                case Refused(reason=Reason.BAD_VERSION) | Unknown():
                    continue  # the horizon moved, or the result is unknown: read again
                case _:
                    break
        msg = f"the snapshot at CSN {pin.csn} could not be pinned in ZooKeeper; try again"
        raise UnavailableError(msg)

    def _find(self, pin_id: str) -> Pin:
        pin = self._pins.get(pin_id)
        if pin is None:
            msg = (
                f"replica {self.replica} holds no snapshot {pin_id}: it was closed or its lease ran "
                "out; take a new one"
            )
            raise UnknownTransactionError(msg)
        return pin

    async def renew(self, pin_id: str) -> Pin:
        """Begin the lease again; other replicas see the renewal by the version of the pin's znode."""
        pin = self._find(pin_id)
        pin.until = self.clock() + pin.ttl_s  # the renewal counts here, even if the write fails
        result = await self.log.fenced((SetData(tree.pin(pin.id), self._data(pin)),))
        if isinstance(result, Ok):
            return self._find(pin_id)
        if isinstance(result, Refused) and result.reason is Reason.NO_NODE:
            self._pins.pop(pin_id, None)
            self._find(pin_id)
        msg = f"the lease of snapshot {pin_id} could not be renewed now; try again"
        raise UnavailableError(msg)

    def _data(self, pin: Pin) -> bytes:
        return encode_pin(PinState(pin.csn, pin.ttl_s, self.replica))

    async def close(self, pin_id: str) -> None:
        """Release the pin; no effect if it is deleted already. If ZooKeeper fails, this happens later."""
        if self._leave(pin_id):
            await self._delete(pin_id)

    def _leave(self, pin_id: str) -> bool:
        if self._pins.pop(pin_id, None) is None:
            return False
        self._leaving[pin_id] = None
        return True

    async def _delete(self, pin_id: str) -> None:
        result = await self.log.fenced((Delete(tree.pin(pin_id), _ANY_VERSION),))
        if isinstance(result, Ok) or result == Refused(Reason.NO_NODE):
            self._leaving.pop(pin_id, None)

    async def sweep(self, *, expire: bool = True) -> None:
        """Release the pins whose lease ran out, if ``expire``, and those that could not be deleted before."""
        now = self.clock()
        for pin in [pin for pin in self._pins.values() if expire and now > pin.until]:
            _log.info("snapshot_expired", pin=pin.id, csn=pin.csn)
            self._leave(pin.id)
        if self.log.state is not LogState.FOLLOWING:
            return
        if not self._adopted:
            await self._adopt()
        for pin_id in list(self._leaving):
            await self._delete(pin_id)

    async def _adopt(self) -> None:
        """Take over the pins of this replica's former boots: their clients may renew them, or they expire."""
        names = await self.store.children(tree.PINS)
        if not isinstance(names, Ok):
            return
        for name in names.value:
            replica, _, number = name.partition("-")
            boot = number.partition("-")[0]
            if replica != self.replica or not boot.isdecimal() or int(boot) >= self.boot:
                continue
            node = await self.store.get(tree.pin(name))
            if isinstance(node, Ok):
                state = decode_pin(node.value.data)
                until = self.clock() + state.ttl_s
                self._pins[name] = Pin(name, state.csn, state.ttl_s, until, granted=True)
            elif node != Refused(Reason.NO_NODE):
                return
        self._adopted = True

    async def forget_ended(self) -> None:
        """Forget pins that others have ended, since they saw no renewal or by order of an operator."""
        granted = [pin.id for pin in self._pins.values() if pin.granted]
        names = await self.store.children(tree.PINS) if granted else None
        if not isinstance(names, Ok):
            return
        for pin_id in {*granted} - {*names.value}:
            # A list may be the answer of a server that lags; a write never is.
            with contextlib.suppress(UnknownTransactionError, UnavailableError):
                await self.renew(pin_id)

    def ids(self) -> frozenset[str]:
        """Return the ids of all pins whose znodes this replica makes, renews and deletes."""
        return frozenset({*self._pins, *self._leaving})

    def describe(self) -> list[SnapshotInfo]:
        """Return the pins of this replica's clients."""
        now = self.clock()
        return [
            SnapshotInfo(id=p.id, csn=p.csn, ttl_s=p.ttl_s, left_s=round(p.until - now, 3))
            for p in self._pins.values()
        ]

    def holds(self, csn: Csn) -> bool:
        """Return whether a client of this replica has pinned a CSN."""
        return any(pin.csn == csn and pin.granted for pin in self._pins.values())

    def oldest(self, default: Csn) -> Csn:
        """Return the smallest pinned CSN, or ``default``."""
        return min((pin.csn for pin in self._pins.values()), default=default)


def _iso(time_ms: int | None) -> str:
    """Return a time (Unix, ms) for people, in UTC."""
    return (
        "an unknown time" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%FT%T.%fZ}"
    )
