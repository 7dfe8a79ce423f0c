"""The state of the exploration of following: ZooKeeper, and one replica: process, catalog, disk."""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.explore.ensemble import RecordFacts
from tests.sim.explore.followers import Asked
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.imprint import UNKNOWN, Imprint
from tidelock.csnlog.core.model import LogRecord
from tidelock.replication.core.messages import PrefixEvent

#: The state of a part on the disk of the follower.
ABSENT_PART, WRITTEN, DURABLE = range(3)


class FollowerTrouble(NamedTuple):
    """How often each thing may still happen."""

    #: An epoch is closed.
    roll: int = 0
    #: The tail moves behind what the follower has applied; the records below are deleted.
    tail: int = 0
    #: The follower is struck: the tail moves to the end.
    strike: int = 0
    #: A transaction is this replica's own, and the answer to its multi arrives.
    own: int = 0
    #: A read fails.
    fail: int = 0
    #: The session ends; the next one reads from any state that ever was.
    session: int = 0
    #: The process dies; what is not fsynced is gone.
    crash: int = 0
    #: A part that is held is found damaged.
    damage: int = 0
    #: The catalog cannot be written.
    full: int = 0
    #: ZooKeeper's disks are copied, and later set back to that copy.
    back: int = 0

    def less(self, name: str) -> FollowerTrouble:
        """One less of a kind."""
        return self._replace(**{name: getattr(self, name) - 1})


class Shard(NamedTuple):
    """The state of the world: ZooKeeper, and the process, session, catalog and disk of the follower."""

    history: tuple[int, ...]
    #: Every record that ever was.
    log: tuple[RecordFacts, ...]
    #: Number of the follower's state, -1 while no process runs, and that of the prefix.
    machine: int
    prefix: int
    asked: tuple[Asked, ...] = ()
    paused: bool = False
    session: int = 1
    seen: int = 0
    #: The record whose creation is watched.
    watched: Csn = CSN_NONE
    #: Delivered and arrived while the catalog was being written.
    records: tuple[LogRecord, ...] = ()
    arrived: tuple[PrefixEvent, ...] = ()
    #: The last record of the batch that is being written (CSN_NONE = none is), and its tids.
    writing: Csn = CSN_NONE
    batch: tuple[str, ...] = ()
    #: The snapshot CSN in the catalog, and the tids that are visible there, in the order of their CSNs.
    applied: Csn = Csn(1)
    visible: tuple[str, ...] = ()
    #: The state of each part on the disk.
    parts: tuple[int, ...] = ()
    sent: int = 0
    #: Records that this replica wrote itself, and may hear of by the answer to its multi.
    pokes: tuple[Csn, ...] = ()
    struck: bool = False
    #: The imprint of the last record that the catalog has, and of that of the batch that is being written.
    last: Imprint = UNKNOWN
    written: Imprint = UNKNOWN
    #: The copy of ZooKeeper, -1 while there is none; its last record; the tids of the log that it replaced.
    copy: int = -1
    copied: Csn = CSN_NONE
    lost: tuple[str, ...] = ()
    #: The process has found that ZooKeeper holds another history, and is not started again.
    stopped: bool = False
    trouble: FollowerTrouble = FollowerTrouble()

    @property
    def now(self) -> int:
        """Index of the newest state of ZooKeeper."""
        return len(self.history) - 1


def less(s: Shard, name: str) -> Shard:
    """The same with less of a kind of trouble."""
    return s._replace(trouble=s.trouble.less(name))


def made_durable(s: Shard) -> Shard:
    """The batch is written."""
    visible = (*s.visible, *s.batch)
    return s._replace(
        applied=s.writing, visible=visible, writing=CSN_NONE, batch=(), last=s.written, written=UNKNOWN
    )


def not_written(s: Shard) -> Shard:
    """The batch is not written, and nothing of it is visible."""
    return s._replace(writing=CSN_NONE, batch=(), written=UNKNOWN)


def behind(s: Shard, at: int) -> str:
    """The server that shows a state of ZooKeeper, in words."""
    writes = s.now - at
    return f"a server {writes} write{'s' if writes > 1 else ''} behind" if writes else "ZooKeeper"
