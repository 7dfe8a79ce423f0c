"""The body of every answer that is an error. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Failure(msgspec.Struct, frozen=True):
    """An error in the form that `tidelock.errors.from_wire` accepts.

    Attributes:
        error: Name of its class in `tidelock.errors`.
        message: The expected state, the state that was found, and the next step.
        details: Facts for programs, by name.
    """

    error: str
    message: str
    details: dict[str, Any] = {}
