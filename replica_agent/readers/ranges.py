"""The Range header of plain HTTP reads (RFC 9110, section 14). Pure."""

from __future__ import annotations

import re

_SINGLE = re.compile(r"bytes=\s*(?:(\d{1,19})-(\d{1,19})?|-(\d{1,19}))\s*", re.ASCII)


class UnsatisfiableRangeError(Exception):
    """The range begins beyond the end (416)."""


def parse(header: str | None, length: int) -> tuple[int, int] | None:
    """Return [start, end) of a single range, or None when the whole file is to be sent.

    A header that is malformed, has another unit or several ranges is ignored, as the RFC allows.

    Raises:
        UnsatisfiableRangeError: No byte of the range exists.
    """
    match = _SINGLE.fullmatch(header) if header else None
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, length - int(suffix)), length
    else:
        start, end = int(first), length if last is None else min(length, int(last) + 1)
        if last is not None and int(last) < int(first):
            return None
    if start >= end:
        raise UnsatisfiableRangeError
    return start, end
