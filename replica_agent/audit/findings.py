"""What a look of an audit has seen, as values; what is answered stands in `tidelock.wire.audit`. Pure."""

from __future__ import annotations

import msgspec

from tidelock.wire.audit import Finding


class Look(msgspec.Struct, frozen=True):
    """What one look of a check has seen: how many things, and which differences."""

    looked_at: int
    findings: frozenset[Finding]
