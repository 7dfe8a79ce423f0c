"""The effect that the faults of a run had on its cluster, by the list of kinds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.bands import Band
from chaos.faults.fault import Fault
from chaos.tolerance import Act


def acts_of(moments: Sequence[Band], kinds: Sequence[type[Fault]]) -> Mapping[int, Act]:
    """Return what each fault did, by its number; KeyError if a kind does not exist any more."""
    known = {kind.kind: kind for kind in kinds}
    return {band.fault: Act.of(known[band.kind], band.targets) for band in moments}
