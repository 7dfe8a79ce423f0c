"""Planted bugs of clones."""

from __future__ import annotations

import sqlite3
from typing import Any
from unittest import mock

from tests.sim.explore.cloning import LAST, Cloning, CloningState, Manifest
from tests.sim.explore.planted import Bug
from tests.sim.explore.replay import Replays
from tidelock.csnlog.cluster import bootstrap, replica_progress
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import Progress
from tidelock.csnlog.core.store import Op, SetData
from tidelock.replica_agent.cloning import manifest


class PositionOfNow(Cloning):
    """The decided rows are sent, and the position is taken when they arrive."""

    def sent(self, s: CloningState) -> Manifest:
        """Leave out what is undecided."""
        sql = "DELETE FROM parts WHERE creation_csn IS NULL"
        decided = self.log.catalogs.after(s.catalog, sql, lambda db: db.execute(sql))
        return super().sent(s)._replace(catalog=decided)

    def position(self, s: CloningState, sent: Manifest) -> Csn:
        """Where the source is now."""
        return s.applied


class ServesAtOnce(Cloning):
    """A replica with a new disk serves wherever it is."""

    def serves_from(self, s: CloningState) -> Csn:
        """Nothing is waited for."""
        return Csn(2)


def _merge(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
    """The rows of the manifest are added to those that are there."""
    columns = (
        "part, table_name, path, rows, length, checksum, creation_tid, creation_csn, removal_csn, kind, state"
    )
    rows = source.execute(f"SELECT {columns} FROM parts")
    marks = ",".join("?" * 11)
    db.executemany(f"INSERT OR REPLACE INTO parts ({columns}) VALUES ({marks})", rows)


def _progress_first(replica: ReplicaId, _reading: Any, _known: Any, clone: str) -> tuple[Op, ...]:
    """The progress of a clone is where it will serve, before anything is held for it."""
    return (SetData(tree.progress(replica), codec.encode_progress(Progress(LAST, LAST))),) if clone else ()


def _clones(**world: Any) -> Any:
    def model(replays: Replays, kind: type[Cloning] = Cloning) -> Cloning:
        return kind(replays, **world)

    return model


CLONE_BUGS = (
    Bug(
        "merge a manifest instead of replacing the catalog",
        frozenset({"I10 AGREE"}),
        _clones(struck=True),
        planted=lambda: mock.patch.object(manifest, "_replace_rows", _merge),
        large=True,
    ),
    Bug(
        "clone without undecided rows, and take the position later",
        frozenset({"I10 AGREE"}),
        _clones(struck=True),
        {"kind": PositionOfNow},
        large=True,
    ),
    Bug(
        "progress before the pin",
        frozenset({"I14 LIVE"}),
        _clones(struck=True, behind=True),
        planted=lambda: mock.patch.object(bootstrap, "_from_the_start", _progress_first),
        large=True,
    ),
    Bug(
        "move tail and horizon by the progress of a former boot",
        frozenset({"I14 LIVE"}),
        _clones(whole=True),
        planted=lambda: mock.patch.object(
            replica_progress.ReplicaProgress, "unchanged", property(lambda self: self.left_out)
        ),
        large=True,
    ),
    Bug(
        "serve a registered replica below its registration",
        frozenset({"I7 NOCONFLICT"}),
        _clones(whole=True),
        {"kind": ServesAtOnce},
        large=True,
    ),
)
