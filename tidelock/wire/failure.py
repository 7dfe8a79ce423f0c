"""The body of every answer that is an error. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """An error, as `tidelock.errors.from_wire` takes it.

    Attributes:
        error: Name of its class in `tidelock.errors`.
        message: What was expected, what was found, and the next step.
        details: Facts for programs, by name.
    """

    error: str
    message: str
    details: dict[str, Any] = {}
