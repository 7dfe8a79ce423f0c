"""Conversion of arguments that callers may pass in several forms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from tidelock.errors import BadRequestError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(duration: str | float | None) -> float | None:
    """Return the seconds of "500ms", "60s", "5m", "1h" or a number; BadRequestError for anything else."""
    if duration is None or isinstance(duration, int | float):
        return duration
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise BadRequestError(
            f"{duration!r} is no duration; expected e.g. '500ms', '60s', '5m', '1h', or seconds"
        )
    return round(float(match[1]) * _UNIT_S[match[2]], 6)  # 6.6, not 6.6000000000000005


def milliseconds(at: datetime | int | None) -> int | None:
    """Return the milliseconds since 1970 of a point in time; BadRequestError for one without time zone."""
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise BadRequestError(f"{at} has no time zone; give one, e.g. datetime(..., tzinfo=UTC)")
    return int(at.timestamp() * 1000)


def plain(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a partition in JSON's form: dates and decimals as their texts."""
    return {
        name: str(value) if isinstance(value, date | Decimal) else value for name, value in partition.items()
    }
