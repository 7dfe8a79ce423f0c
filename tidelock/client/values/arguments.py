"""Conversion of arguments that callers may pass in several forms. Pure."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from tidelock.errors import BadRequestError
from tidelock.wire.statements import Literal, Value
from tidelock.wire.tags import is_tag_name

#: New values by column. A string is SQL; None, bool, int, float, Decimal, date, datetime and bytes are
#: values.
Values = Mapping[str, Any]

#: A place in the history: a CSN, or a time (a datetime with time zone, or its ISO 8601 text).
Point = int | datetime | str

DEFAULT_NAMESPACE = "default"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def full_name(table: str) -> str:
    """Return `namespace.table` for a name with or without namespace."""
    return table if "." in table else f"{DEFAULT_NAMESPACE}.{table}"


def seconds(duration: str | float | None) -> float | None:
    """Return the seconds of "500ms", "60s", "5m", "1h" or a number; BadRequestError for anything else."""
    if duration is None or isinstance(duration, int | float):
        return duration
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise BadRequestError(
            f"expected a duration, e.g. '500ms', '60s', '5m', '1h', or seconds; found {duration!r}"
        )
    return round(float(match[1]) * _UNIT_S[match[2]], 6)  # 6.6, not 6.6000000000000005


def csn_or_none(csn: object, name: str = "csn") -> int | None:
    """Return a CSN as it is; BadRequestError for anything else than an integer."""
    if csn is None or (isinstance(csn, int) and not isinstance(csn, bool)):
        return csn
    raise BadRequestError(f"expected {name} as an integer, a CSN; found {csn!r}; give a point in time as at=")


def csn_or_name(csn: object) -> int | str | None:
    """Return a CSN, also of its digits, or the name of a tag; BadRequestError for anything else."""
    if not isinstance(csn, str):
        return csn_or_none(csn)
    if csn.isascii() and csn.isdecimal():
        return int(csn)
    if not is_tag_name(csn):
        raise BadRequestError(
            f"expected csn as an integer, a CSN, or the name of a tag; found {csn!r}; give a point in time "
            "as at="
        )
    return csn


def past_point(
    csn: int | str | None, at: datetime | int | str | None
) -> tuple[int | None, str | None, int | None]:
    """Return a point of the past as agents take it: a CSN, a tag, and ms since 1970; one of them is given."""
    chosen = csn_or_name(csn)
    at_ms = None if at is None else milliseconds(at)
    return (None, chosen, at_ms) if isinstance(chosen, str) else (chosen, None, at_ms)


def csn_or_time(point: Point, name: str) -> int | datetime:
    """Return a CSN as it is, and a time as a datetime (UTC, whole milliseconds).

    BadRequestError for anything else, and for a time without time zone.
    """
    if isinstance(point, datetime | str):
        return datetime.fromtimestamp(milliseconds(point) / 1000, UTC)
    if isinstance(point, bool) or not isinstance(point, int):
        raise BadRequestError(
            f"expected {name} as a CSN, a datetime or its ISO 8601 text; found {point!r}; give one of them"
        )
    return point


def milliseconds(at: datetime | int | str) -> int:
    """Return the milliseconds since 1970 of a point in time, rounded down: the one rule for times of callers.

    Args:
        at: A datetime with time zone; its ISO 8601 text, with `Z` or an offset; or milliseconds since 1970.

    Raises:
        BadRequestError: The time has no time zone: a day alone has none either. Or it is of another form, or
            no time of a clock with 60 seconds in a minute.
    """
    if isinstance(at, int) and not isinstance(at, bool):
        return at
    time = _parsed(at) if isinstance(at, str) else at
    if not isinstance(time, datetime):
        raise BadRequestError(
            f"expected a datetime, ISO 8601 text, or ms since 1970; found {at!r}; "
            "give e.g. '2026-11-22T10:00:00Z'"
        )
    if time.tzinfo is None or time.utcoffset() is None:
        raise BadRequestError(
            f"expected a point in time with its time zone, found {str(at)!r}, which has no time zone; "
            "give e.g. '2026-11-22T10:00:00Z', or datetime(..., tzinfo=UTC)"
        )
    # Whole numbers: `timestamp()` is a float, and rounds towards 1970.
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise BadRequestError(
            f"expected a point in time in ISO 8601, e.g. '2026-11-22T10:00:00Z'; found {text!r} ({error})"
        ) from None


def plain(partition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a partition in JSON's form: dates and decimals as their texts."""
    return {
        name: str(value) if isinstance(value, date | Decimal) else value for name, value in partition.items()
    }


def values_or_flag(values: Values | bool | None) -> dict[str, Value] | bool:
    """Return new values in the agent's form, or a flag as bool."""
    return literals(values) if isinstance(values, Mapping) else bool(values)


def literals(values: Values) -> dict[str, Value]:
    """Return new values by column in the agent's form; BadRequestError for a value of another type."""
    return {column: _literal(column, value) for column, value in values.items()}


def _literal(column: str, value: Any) -> Value:
    """Return a new value in the agent's form: SQL unchanged, anything else as a literal."""
    match value:
        case str():
            return value
        case float() if not math.isfinite(value):
            return Literal(str(value))
        case None | bool() | int() | float():
            return Literal(value)
        case Decimal():
            return Literal(f"{value:f}")
        case date() | time():  # a datetime is a date too
            return Literal(str(value))
        case bytes() | bytearray():
            return Literal(base64.b64encode(value).decode("ascii"), base64=True)
        case _:
            raise BadRequestError(
                f"the new value of {column} is a {type(value).__name__}; give SQL, or None, bool, int, "
                "float, Decimal, date, time, datetime or bytes",
                column=column,
            )
