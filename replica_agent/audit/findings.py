"""The result of one look of an audit, as values; the HTTP answer is in `tidelock.wire.audit`. Pure."""

from __future__ import annotations

import msgspec

from tidelock.wire.audit import Finding


class CheckResult(msgspec.Struct, frozen=True):
    """The result of one look of a check: the number of things, and the differences."""

    looked_at: int
    findings: frozenset[Finding]
