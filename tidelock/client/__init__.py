"""The client library: transactions and snapshots over HTTP, for any Python program.

    import tidelock

    db = tidelock.connect("http://127.0.0.1:8801")
    with db.begin() as tx:
        tx.insert("orders", orders)
        tx.insert("lineitem", lines)
    with db.snapshot() as snap:
        snap.sql("select count(*) from orders")

It holds no part of the protocol: the client sends requests, the agents decide. The client promises that its
reports are exact: a commit that it reports as refused is certainly not visible, a commit that it reports as
done is durable, and if neither is known it reports that (`tidelock.errors`).
"""

from __future__ import annotations

from tidelock.client.database import Database, connect
from tidelock.client.reads.feed import ChangedPart, ChangePage, Changes, ChangeSet
from tidelock.client.reads.scan import Scan
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.reads.stream import BatchStream
from tidelock.client.reads.subscription import Progress, Rows, Subscription
from tidelock.client.values.results import (
    CommitResult,
    Decision,
    InsertResult,
    LandResult,
    Outcome,
    TableChange,
    TransactionAtHome,
    TransactionState,
)
from tidelock.client.writes.joined import JoinedTransaction, join
from tidelock.client.writes.transaction import Transaction
from tidelock.wire.cluster import (
    Explanation,
    HorizonAnswer,
    LostPart,
    OptimizeAnswer,
    ReplicaStatus,
    StatusAnswer,
    SwitchInfo,
)
from tidelock.wire.log import LogEntry
from tidelock.wire.members import MembersAnswer
from tidelock.wire.rows import Row, RowList
from tidelock.wire.tables import CommittedTable, PartInfo, TableInfo

__all__ = [
    "BatchStream",
    "ChangePage",
    "ChangeSet",
    "ChangedPart",
    "Changes",
    "CommitResult",
    "CommittedTable",
    "Database",
    "Decision",
    "Explanation",
    "HorizonAnswer",
    "InsertResult",
    "JoinedTransaction",
    "LandResult",
    "LogEntry",
    "LostPart",
    "MembersAnswer",
    "OptimizeAnswer",
    "Outcome",
    "PartInfo",
    "Progress",
    "ReplicaStatus",
    "Row",
    "RowList",
    "Rows",
    "Scan",
    "Snapshot",
    "StatusAnswer",
    "Subscription",
    "SwitchInfo",
    "TableChange",
    "TableInfo",
    "Transaction",
    "TransactionAtHome",
    "TransactionState",
    "connect",
    "join",
]
