"""Switches: the few settings that an operator changes while an agent runs. A restart forgets them.

They are for incidents: to stop compaction beside a night's load, to keep what would be deleted, to keep
transactions of clients that cannot reach the agent. The settings stay the one place for what is to last, so
an agent that was started again does what its configuration says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog

from tidelock.errors import BadRequestError
from tidelock.replica_agent.config import logs
from tidelock.replica_agent.config.settings import LOG_LEVELS, AgentSettings

_log = structlog.get_logger("switches")


class ShownSwitch(NamedTuple):
    """A switch as text: its name, its value now, and the value of the agent's configuration."""

    name: str
    value: str
    configured: str


def _flag(text: str) -> bool:
    if text not in {"on", "off"}:
        raise ValueError("on or off")
    return text == "on"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError("a number of seconds, 0 or above")
    return seconds


def _level(text: str) -> str:
    if text not in LOG_LEVELS:
        raise ValueError(f"one of {', '.join(LOG_LEVELS)}")
    return text


#: The switches, and how each reads its value.
_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "collection": _flag,
    "compaction": _flag,
    "lease_sweep": _flag,
    "lock_wait_s": _seconds,
    "log_level": _level,
}


@dataclass(slots=True, kw_only=True, eq=False)
class Switches:
    """The switches of one agent.

    Attributes:
        collection: Move horizon and tail, and delete what nothing needs any more.
        compaction: Merge small parts in the background.
        lease_sweep: End transactions and snapshots whose lease has run out; off: they are kept meanwhile.
        lock_wait_s: As the setting of this name.
        log_level: As the setting of this name; worker processes keep theirs.
    """

    collection: bool = True
    compaction: bool
    lease_sweep: bool = True
    lock_wait_s: float
    log_level: str
    _configured: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Note the values of the configuration."""
        self._configured = {name: self._text(name) for name in _KINDS}

    @classmethod
    def of(cls, settings: AgentSettings) -> Switches:
        """Return the switches as the configuration sets them."""
        return cls(
            compaction=settings.compaction, lock_wait_s=settings.lock_wait_s, log_level=settings.log_level
        )

    def set(self, name: str, text: str) -> None:
        """Set a switch, from now on and until the agent is started again.

        Raises:
            BadRequestError: No switch has this name, or the value is not one of its values.
        """
        if name not in _KINDS:
            raise BadRequestError(f"there is no switch {name!r}; the switches are {', '.join(_KINDS)}")
        try:
            value = _KINDS[name](text)
        except ValueError as error:
            raise BadRequestError(f"the switch {name} takes {error}; found {text!r}") from error
        before = self._text(name)
        setattr(self, name, value)
        if name == "log_level":
            logs.set_level(self.log_level)
        _log.warning("switched", switch=name, before=before, now=self._text(name))

    def shown(self) -> list[ShownSwitch]:
        """Return all switches, by name."""
        return [ShownSwitch(name, self._text(name), self._configured[name]) for name in _KINDS]

    def _text(self, name: str) -> str:
        match getattr(self, name):
            case bool(on):
                return "on" if on else "off"
            case float(seconds):
                return f"{seconds:g}"
            case text:
                return str(text)
