"""The faults: what can happen to a cluster. One file for each kind; the list is `ALL`.

The interface is `fault.py`; `signs.py` proves an effect, and `reviving.py` brings a replica back. The folders
are named after what is harmed. Each has its kinds, and the means that they share.

A heal waits until its target serves again, and that may need the end of another fault: faults that act at
the same time must be healed independently of each other.
"""

from __future__ import annotations

from typing import Final

from chaos.faults.clocks.clock_strobed import ClockStrobed
from chaos.faults.clocks.clock_wrong import ClockWrong
from chaos.faults.disks.catalog_damaged import CatalogDamaged
from chaos.faults.disks.catalog_truncated import CatalogTruncated
from chaos.faults.disks.disk_full import DiskFull
from chaos.faults.disks.disk_replaced import DiskReplaced
from chaos.faults.disks.fsync_failing import FsyncFailing
from chaos.faults.disks.pack_flipped import PackFlipped
from chaos.faults.disks.pack_truncated import PackTruncated
from chaos.faults.disks.part_flipped import PartFlipped
from chaos.faults.disks.part_truncated import PartTruncated
from chaos.faults.disks.slow_disk import SlowDisk
from chaos.faults.fault import Fault
from chaos.faults.members.member_added import MemberAdded
from chaos.faults.members.member_removed import MemberRemoved
from chaos.faults.members.member_replaced import MemberReplaced
from chaos.faults.members.member_struck import MemberStruck
from chaos.faults.network.cut_from_clients import CutFromClients
from chaos.faults.network.cut_from_one_server import CutFromOneServer
from chaos.faults.network.cut_from_peers import CutFromPeers
from chaos.faults.network.cut_from_zookeeper import CutFromZooKeeper
from chaos.faults.network.isolated import Isolated
from chaos.faults.network.lossy_network import LossyNetwork
from chaos.faults.network.one_way_cut import OneWayCut
from chaos.faults.network.one_way_cut_from_clients import OneWayCutFromClients
from chaos.faults.network.one_way_cut_from_zookeeper import OneWayCutFromZooKeeper
from chaos.faults.network.pair_cut import PairCut
from chaos.faults.network.slow_network import SlowNetwork
from chaos.faults.processes.driver_killed import DriverKilled
from chaos.faults.processes.frozen import Frozen
from chaos.faults.processes.killed import Killed
from chaos.faults.processes.replicas_lost import ReplicasLost
from chaos.faults.processes.rolling_restart import RollingRestart
from chaos.faults.processes.stopped import Stopped
from chaos.faults.zookeeper.session_expired import SessionExpired
from chaos.faults.zookeeper.zookeeper_follower_frozen import ZooKeeperFollowerFrozen
from chaos.faults.zookeeper.zookeeper_leader_killed import ZooKeeperLeaderKilled
from chaos.faults.zookeeper.zookeeper_majority_lost import ZooKeeperMajorityLost
from chaos.faults.zookeeper.zookeeper_rolling_restart import ZooKeeperRollingRestart
from chaos.faults.zookeeper.zookeeper_set_back import ZooKeeperSetBack

#: All kinds of faults.
ALL: Final[tuple[type[Fault], ...]] = (
    Killed,
    Frozen,
    Stopped,
    RollingRestart,
    ReplicasLost,
    CutFromPeers,
    PairCut,
    OneWayCut,
    CutFromZooKeeper,
    OneWayCutFromZooKeeper,
    CutFromOneServer,
    CutFromClients,
    OneWayCutFromClients,
    Isolated,
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
    PackTruncated,
    CatalogDamaged,
    CatalogTruncated,
    DiskReplaced,
    MemberAdded,
    MemberRemoved,
    MemberReplaced,
    MemberStruck,
    ZooKeeperSetBack,
    DriverKilled,
)
