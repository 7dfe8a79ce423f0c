"""Fault points: named places where a test may let a component fail, pause, crash or lose a reply.

A component registers a step once, at import, and passes it on both sides of the work::

    COMMIT = faults.step("csnlog.commit")

    await COMMIT.before()
    result = await store.multi(ops)
    await COMMIT.after()

Nothing is armed by default, and then a pass costs one attribute test. Points are armed by the environment,
which is read once at the start of the process, or by :func:`arm` in tests::

    TIDELOCK_FAULTS = "csnlog.commit.after=crash@3;replication.push.before=once"

A fault is ``kind[@n][:FILE]``; ``n`` is the pass at which it acts, counted from 1 since the point was armed:

    once         raise :class:`Injected` at that pass only
    always       raise :class:`Injected` at that pass and at each later one
    lost-reply   raise :class:`LostReply` at that pass only: the work was done and its answer is lost
    enospc, eio  raise the OSError of a full or broken disk, at that pass and at each later one
    crash        SIGKILL to the own process at that pass
    pause        wait, at that pass and at each later one, until ``release``

With FILE a fault is armed only while FILE exists: passes at other times neither count nor act, and a pause
lasts as long as FILE exists. So a test arms the processes that it starts once, and creates FILE at the moment
when the fault should act.

If ``TIDELOCK_FAULTS_JOURNAL`` names a file, each fault that acts first appends the line ``<point> <kind>
<pass> <pid>`` to it. A test reads there, across processes and crashes, that its fault has acted: a fault that
did not act is a failed test.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidelock.errors import ConfigError

ENV_FAULTS = "TIDELOCK_FAULTS"
ENV_JOURNAL = "TIDELOCK_FAULTS_JOURNAL"

#: Kinds that act at one pass only, and kinds that act from that pass on.
_SINGLE = frozenset({"once", "lost-reply", "crash"})
_LASTING = frozenset({"always", "enospc", "eio", "pause"})
KINDS = _SINGLE | _LASTING

_STEP = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
_FAULT = re.compile(r"([a-z-]+)(?:@([1-9]\d*))?(?::(.+))?")
_PAUSE_POLL_S = 0.01


class Injected(Exception):  # noqa: N818 - named after what happened, it stands for any error
    """The failure that a fault point is armed to raise."""


class LostReply(Exception):  # noqa: N818 - as above
    """The work behind the fault point was done, but its answer counts as lost."""


class ArmedFault(msgspec.Struct, frozen=True):
    """The action of an armed point: ``kind`` at pass ``at``, while ``file`` exists if one is named."""

    kind: str
    at: int = 1
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> ArmedFault:
        """Parse ``kind[@n][:FILE]``; raise ConfigError for any other text."""
        match = _FAULT.fullmatch(text)
        if match is None or match[1] not in KINDS:
            raise ConfigError(
                f"{text!r} is not a fault; expected kind[@n][:FILE], kind being one of {_joined(KINDS)}"
            )
        kind, at, file = match.groups()
        return cls(kind, int(at or 1), Path(file) if file is not None else None)

    @property
    def armed(self) -> bool:
        """Whether a pass counts at this moment."""
        return self.file is None or self.file.exists()

    def acts_at(self, number: int) -> bool:
        """Return whether the fault acts at the pass with this number."""
        return number == self.at if self.kind in _SINGLE else number >= self.at


class _Point:
    """One named point. ``fault`` is None unless armed; the counters count since it was armed."""

    __slots__ = ("_lock", "fault", "fired", "hits", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fault: ArmedFault | None = None
        self.hits = 0
        self.fired = 0
        self._lock = threading.Lock()

    def arm(self, fault: ArmedFault) -> None:
        with self._lock:
            self.fault, self.hits, self.fired = fault, 0, 0

    def pauses(self, fault: ArmedFault) -> bool:
        """Return whether a pause still lasts: not released, and its file, if it has one, still exists."""
        return self.fault is fault and fault.armed

    def act(self) -> ArmedFault | None:
        """Count a pass and apply the armed fault. A pause is returned, since the caller has to wait."""
        with self._lock:
            fault = self.fault
            if fault is None or not fault.armed:
                return None
            self.hits += 1
            number = self.hits
            if not fault.acts_at(number):
                return None
            self.fired += 1
        _journal(f"{self.name} {fault.kind} {number} {os.getpid()}\n")
        match fault.kind:
            case "pause":
                return fault
            case "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            case "lost-reply":
                raise LostReply(f"reply lost at the fault point {self.name}, pass {number}")
            case "enospc":
                raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (fault point {self.name})")
            case "eio":
                raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (fault point {self.name})")
        raise Injected(f"fault point {self.name}, pass {number}")


class FaultStep:
    """A step of a component with its two points, ``<name>.before`` and ``<name>.after``."""

    __slots__ = ("_after", "_before", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._before = _point(f"{name}.before")
        self._after = _point(f"{name}.after")

    async def before(self) -> None:
        """Pass the point in front of the step (event loop)."""
        if self._before.fault is not None:
            await _pass(self._before)

    async def after(self) -> None:
        """Pass the point behind the step (event loop)."""
        if self._after.fault is not None:
            await _pass(self._after)

    def before_blocking(self) -> None:
        """Pass the point in front of the step, in a thread that may block."""
        if self._before.fault is not None:
            _pass_blocking(self._before)

    def after_blocking(self) -> None:
        """Pass the point behind the step, in a thread that may block."""
        if self._after.fault is not None:
            _pass_blocking(self._after)


async def _pass(point: _Point) -> None:
    fault = point.act()
    while fault is not None and point.pauses(fault):  # noqa: ASYNC110 - a file has no event to wait for
        await asyncio.sleep(_PAUSE_POLL_S)


def _pass_blocking(point: _Point) -> None:
    fault = point.act()
    while fault is not None and point.pauses(fault):
        time.sleep(_PAUSE_POLL_S)


def _joined(items: Iterable[str]) -> str:
    return ", ".join(sorted(items))


def _journal(line: str) -> None:
    """Append one line; O_APPEND keeps the lines of several processes whole."""
    if path := os.environ.get(ENV_JOURNAL):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(line)


#: All points by name: registered by a step, or only armed because the module of the step is not loaded yet.
_points: dict[str, _Point] = {}
_registered: dict[str, FaultStep] = {}


def _point(name: str) -> _Point:
    return _points.setdefault(name, _Point(name))


def step(name: str) -> FaultStep:
    """Register the points ``<name>.before`` and ``<name>.after`` of a step and return it.

    Args:
        name: ``component.step``, both of ``[a-z0-9_]``. The same name returns the same step.

    Raises:
        ValueError: The name has another form.
    """
    if not _STEP.fullmatch(name):
        raise ValueError(f"{name!r} is not of the form component.step")
    if name not in _registered:
        _registered[name] = FaultStep(name)
    return _registered[name]


def names() -> tuple[str, ...]:
    """Return the names of all registered points, sorted."""
    return tuple(sorted(f"{name}.{side}" for name in _registered for side in ("before", "after")))


def arm(name: str, fault: str) -> None:
    """Arm a point and set its counters to 0; ConfigError when the fault is malformed.

    The name may still be unknown, because its module is not loaded: see :func:`check_armed`.
    """
    _point(name).arm(ArmedFault.parse(fault))


def release(name: str) -> None:
    """Disarm a point; a task that pauses at it goes on. The counters can still be read."""
    _point(name).fault = None


def release_all() -> None:
    """Disarm every point."""
    for point in _points.values():
        point.fault = None


@contextmanager
def armed(name: str, fault: str) -> Iterator[None]:
    """Arm a point for the duration of a ``with`` block."""
    arm(name, fault)
    try:
        yield
    finally:
        release(name)


def hits(name: str) -> int:
    """Return how often the point was passed since it was armed; 0 if it never was."""
    return _points[name].hits if name in _points else 0


def fired(name: str) -> int:
    """Return how often the fault of the point acted since it was armed."""
    return _points[name].fired if name in _points else 0


def arm_from(environment: Mapping[str, str]) -> None:
    """Arm the points that ``TIDELOCK_FAULTS`` names; raise ConfigError when it cannot be parsed."""
    for item in environment.get(ENV_FAULTS, "").split(";"):
        if not item.strip():
            continue
        name, separator, fault = item.strip().partition("=")
        if not separator:
            raise ConfigError(f"{ENV_FAULTS} holds {item!r}; expected point=fault, several joined by ';'")
        arm(name, fault)


def check_armed() -> None:
    """Refuse armed names that no loaded module has registered; to be called once all modules are loaded.

    Raises:
        ConfigError: A name is unknown; the message lists the registered names.
    """
    known = names()
    unknown = sorted(name for name, point in _points.items() if point.fault is not None and name not in known)
    if unknown:
        raise ConfigError(f"unknown fault points: {_joined(unknown)}; there are: {_joined(known) or 'none'}")


arm_from(os.environ)
