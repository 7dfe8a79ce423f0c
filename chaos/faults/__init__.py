"""The faults: what can happen to a cluster. One file for each kind; the list is `ALL`.

A heal waits until its target serves again, and that may need the end of another fault: faults that act at
the same time must be healed independently of each other.
"""

from __future__ import annotations

from typing import Final

from chaos.faults.cut_from_zookeeper import CutFromZooKeeper
from chaos.faults.fault import Fault
from chaos.faults.frozen import Frozen
from chaos.faults.killed import Killed
from chaos.faults.zookeeper_leader_killed import ZooKeeperLeaderKilled

#: All kinds of faults.
ALL: Final[tuple[type[Fault], ...]] = (Killed, Frozen, CutFromZooKeeper, ZooKeeperLeaderKilled)
