"""The fault points of an agent, grouped by the work that passes them: a test cuts the power at each of them.

`TESTED` and `WITHOUT_DISK` must name every point that is registered (test_tools.py), so that no new point
is forgotten.
"""

from __future__ import annotations

from typing import Final

from tests.support.faults.lab import points

#: Points that every commit passes at its home.
OF_COMMITS: Final = points(
    [
        *("agent.stage", "agent.seal", "agent.pack", "agent.catalog", "partfs.write", "partfs.fsync"),
        *("partfs.rename", "replication.push", "csnlog.commit", "replication.apply"),
    ]
)
#: Points that only a replica passes that stores parts of another replica's transaction.
OF_PEERS: Final = points(["replication.accept", "replication.fetch"])
#: Points where the disk of a peer changes too, and those of its apply.
OF_BOTH: Final = points(
    [
        *("agent.pack", "agent.catalog", "partfs.write", "partfs.fsync", "partfs.rename"),
        "replication.apply",
    ]
)
#: Points that a commit passes after a lost reply, and at the end of an epoch.
OF_RAISE: Final = points(["csnlog.raise"])
OF_ROLLOVER: Final = points(["csnlog.rollover"])
#: Points that a merge passes; the pack is that of a merge of small parts.
OF_COMPACTION: Final = points(
    [
        *("agent.compact", "partfs.write", "partfs.fsync", "partfs.rename", "agent.seal", "agent.pack"),
        *("replication.push", "replication.lock", "agent.catalog", "csnlog.commit", "replication.apply"),
    ]
)
#: Points of a garbage collection: its batch is found; its rows are gone and the files are still there.
OF_COLLECT: Final = points(["agent.collect"])
#: Points that a replica passes when it takes a file of a transaction whose home is another replica.
OF_UPLOADS: Final = points(["agent.upload"])
#: Points of a home between its answer to rows that landed and their commit, and after that.
OF_LANDINGS: Final = points(["agent.landed"])
#: Points of a replica that starts and clones, and of the peer that writes its catalog for it.
OF_CLONES: Final = points(["csnlog.begin", "agent.clone_receive", "agent.clone_install"])
OF_SOURCES: Final = points(["agent.clone_manifest"])

TESTED: Final = frozenset(
    [
        *(*OF_COMMITS, *OF_PEERS, *OF_BOTH, *OF_RAISE, *OF_ROLLOVER, *OF_LANDINGS),  # test_power_cuts.py
        *(*OF_COMPACTION, *OF_COLLECT),  # test_power_cuts_history.py
        *OF_UPLOADS,  # test_power_cuts_uploads.py
        *(*OF_CLONES, *OF_SOURCES),  # test_power_cuts_clones.py
    ]
)

#: Points of writes to ZooKeeper by a process whose own disk says nothing about them: SIGKILL is enough there
#: (tests/integration/test_membership_kills.py, test_rebuilding.py, test_skip_record.py).
WITHOUT_DISK: Final = frozenset(points(["membership.change", "rebuild.write", "csnlog.skip"]))
