"""All replicas show the same at the same CSN."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from chaos.checks.check import Check
from chaos.record.violation import Violation
from chaos.world import World
from tidelock.client import Database
from tidelock.errors import NoSuchCsnError, SnapshotTooOldError, StandbyError, UnavailableError

#: CSNs besides the newest one at which all replicas are compared.
CSNS: Final = 6
#: How long a clone may take to fetch what only older CSNs need, in seconds.
_FETCHED_S: Final = 60.0
_LOOK_S: Final = 0.2
#: The state that a replica shows: a line for each part, by table.
Shown = Mapping[str, frozenset[tuple[str, str, int, str]]]


class Agreement(Check):
    """The parts of all tables, with their checksums, are the same on every replica at several CSNs (I6)."""

    name: ClassVar[str] = "agreement"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        dbs = {replica: world.cluster.connect(replica) for replica in sorted(world.cluster.replicas)}
        found: list[Violation] = []
        try:
            told = [db.status() for db in dbs.values()]
            least, most = max(one["horizon"] for one in told), max(one["snapshot_csn"] for one in told)
            drawn = world.chosen(self.name)
            for csn in [most, *sorted(_several(drawn, least, most))]:
                shown = {replica: parts(db, csn) for replica, db in dbs.items()}
                found += differences(csn, {name: one for name, one in shown.items() if one is not None})
        finally:
            for db in dbs.values():
                db.close()
        return found


def _several(drawn: random.Random, least: int, most: int) -> set[int]:
    """Return some CSNs of the readable history; those that are none are read as the one before."""
    if most <= least:
        return set()
    return {drawn.randint(least, most) for _ in range(CSNS)}


def parts(db: Database, csn: int) -> Shown | None:
    """Return what a replica shows at a CSN; None if it is no CSN, or is not readable any more."""
    deadline = time.monotonic() + _FETCHED_S
    while True:
        try:
            with db.snapshot(csn) as snap:
                return {
                    table["name"]: frozenset(
                        (one["part"], one["path"], one["rows"], one["checksum"])
                        for one in snap.parts(table["name"])
                    )
                    for table in snap.tables()
                }
        except (NoSuchCsnError, SnapshotTooOldError):
            return None
        except (StandbyError, UnavailableError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)


def differences(csn: int, shown: Mapping[str, Shown]) -> list[Violation]:
    """Return where replicas differ from the first one at a CSN. Pure."""
    found = []
    first, *others = sorted(shown) or [""]
    for other in others:
        for table in sorted({*shown[first], *shown[other]}):
            one, two = (shown[name].get(table) for name in (first, other))
            if one == two:
                continue
            story = f"table {table} at CSN {csn}: {_only(first, one, two)}; {_only(other, two, one)}"
            found.append(Violation(Agreement.name, "I6 SNAPSHOT: all replicas show the same", story))
    return found


def _only(name: str, own: frozenset[Any] | None, others: frozenset[Any] | None) -> str:
    if own is None:
        return f"{name} has no such table"
    return f"only {name} has {sorted(own - (others or frozenset()))}"
