"""The faults: what can happen to a cluster. One file for each kind; the list is `ALL`.

A heal waits until its target serves again, and that may need the end of another fault: faults that act at
the same time must be healed independently of each other.
"""

from __future__ import annotations

from typing import Final

from chaos.faults.catalog_damaged import CatalogDamaged
from chaos.faults.clock_strobed import ClockStrobed
from chaos.faults.clock_wrong import ClockWrong
from chaos.faults.cut_from_clients import CutFromClients
from chaos.faults.cut_from_one_server import CutFromOneServer
from chaos.faults.cut_from_peers import CutFromPeers
from chaos.faults.cut_from_zookeeper import CutFromZooKeeper
from chaos.faults.disk_full import DiskFull
from chaos.faults.disk_replaced import DiskReplaced
from chaos.faults.driver_killed import DriverKilled
from chaos.faults.fault import Fault
from chaos.faults.frozen import Frozen
from chaos.faults.fsync_failing import FsyncFailing
from chaos.faults.killed import Killed
from chaos.faults.lossy_network import LossyNetwork
from chaos.faults.member_added import MemberAdded
from chaos.faults.member_removed import MemberRemoved
from chaos.faults.member_replaced import MemberReplaced
from chaos.faults.member_struck import MemberStruck
from chaos.faults.one_way_cut import OneWayCut
from chaos.faults.pack_flipped import PackFlipped
from chaos.faults.pair_cut import PairCut
from chaos.faults.part_flipped import PartFlipped
from chaos.faults.part_truncated import PartTruncated
from chaos.faults.rolling_restart import RollingRestart
from chaos.faults.session_expired import SessionExpired
from chaos.faults.slow_disk import SlowDisk
from chaos.faults.slow_network import SlowNetwork
from chaos.faults.stopped import Stopped
from chaos.faults.zookeeper_follower_frozen import ZooKeeperFollowerFrozen
from chaos.faults.zookeeper_leader_killed import ZooKeeperLeaderKilled
from chaos.faults.zookeeper_majority_lost import ZooKeeperMajorityLost
from chaos.faults.zookeeper_rolling_restart import ZooKeeperRollingRestart
from chaos.faults.zookeeper_set_back import ZooKeeperSetBack

#: All kinds of faults.
ALL: Final[tuple[type[Fault], ...]] = (
    Killed,
    Frozen,
    Stopped,
    RollingRestart,
    CutFromPeers,
    PairCut,
    OneWayCut,
    CutFromZooKeeper,
    CutFromOneServer,
    CutFromClients,
    SlowNetwork,
    LossyNetwork,
    ZooKeeperLeaderKilled,
    ZooKeeperFollowerFrozen,
    ZooKeeperRollingRestart,
    ZooKeeperMajorityLost,
    SessionExpired,
    ClockWrong,
    ClockStrobed,
    DiskFull,
    FsyncFailing,
    SlowDisk,
    PartFlipped,
    PackFlipped,
    PartTruncated,
    CatalogDamaged,
    DiskReplaced,
    MemberAdded,
    MemberRemoved,
    MemberReplaced,
    MemberStruck,
    ZooKeeperSetBack,
    DriverKilled,
)
