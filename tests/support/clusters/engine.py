"""The check whether a container engine and its compose exist."""

from __future__ import annotations

import functools

from demo.containers import engine
from tidelock.errors import ConfigError


@functools.cache
def answers() -> bool:
    """Return whether an engine answers and a compose is there, asked once per process."""
    try:
        engine.compose()
    except ConfigError:
        return False
    return True
