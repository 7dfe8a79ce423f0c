"""No replica to which nothing happened has refused a write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from chaos import faults
from chaos.checks.check import Check
from chaos.faults.fault import Aim
from chaos.planning.tolerance import Act
from chaos.reading.bands import Band, acts_of, at, bands
from chaos.record.journal import load
from chaos.record.violation import Violation
from chaos.world import World
from tidelock import errors

#: Refusals for what is asked or for what others do, not for the state of the home.
LEGITIMATE: Final = (
    errors.SerializationConflictError,
    errors.HeadMovedError,
    errors.LabelExistsError,
    errors.LabelMovedError,
    errors.TableChangedError,
    errors.TableExistsError,
    errors.DuplicateKeyError,
    errors.CheckViolationError,
    errors.TooManyPartsError,  # back pressure: compaction is behind
)


class Refusals(Check):
    """A refusal says that the home cannot commit now: then something must have happened to it (I14)."""

    name: ClassVar[str] = "refusals"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        lines = list(load(world.journal.path))
        moments = bands(lines)
        return refusals(lines, moments, acts_of(moments, faults.ALL))


def refusals(
    lines: Iterable[Mapping[str, Any]], moments: Sequence[Band], acts: Mapping[int, Act]
) -> list[Violation]:
    """Return the refusals by homes to which nothing happened. Pure.

    A fault that does no harm counts as nothing, but for one between a replica and another node: the messages
    of its targets are late. Where nobody knows the home, nothing is concluded.
    """
    found = []
    for line in lines:
        if line["what"] != "call" or line["f"] != "write" or line["end"] != "fail" or line.get("expected"):
            continue
        kind = getattr(errors, line.get("error", ""), None)
        home = line.get("home")
        if home is None or kind is None or not issubclass(kind, errors.RefusedError):
            continue
        if issubclass(kind, LEGITIMATE):
            continue
        around = [band for band in at(moments, line["ns"]) if _touches(acts[band.fault], home)]
        before = [
            band for band in at(moments, line.get("began_ns", line["ns"])) if _touches(acts[band.fault], home)
        ]
        if not around and not before:
            tids = (line["tid"],) if line.get("tid") else ()
            story = f"{home} refused: {line['error']}: {line.get('message', '')}"
            found.append(
                Violation(Refusals.name, "I14 LIVE: a home that is well commits", story, line["ns"], tids)
            )
    return found


def _touches(act: Act, home: str) -> bool:
    if act.halts or (act.aim is Aim.ALL and act.harms):
        return True
    return home in act.targets and (act.harms or act.aim is not Aim.REPLICA)
