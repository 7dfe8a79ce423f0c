"""The fault points of an agent, by who passes them: at each of them the power is cut by a test.

`TESTED` has to name every point that an agent registers (test_tools.py), so that one that somebody adds is
not forgotten.
"""

from __future__ import annotations

from typing import Final

from tests.support.faults.lab import points

#: What every commit passes at its home.
OF_COMMITS: Final = points(
    [
        *("agent.stage", "agent.seal", "agent.pack", "agent.catalog", "partfs.write", "partfs.fsync"),
        *("partfs.rename", "replication.push", "csnlog.commit", "replication.apply"),
    ]
)
#: What only a replica passes that stores parts of another's transaction.
OF_PEERS: Final = points(["replication.accept", "replication.fetch"])
#: What changes the disk of a peer too, and its apply.
OF_BOTH: Final = points(
    [
        *("agent.pack", "agent.catalog", "partfs.write", "partfs.fsync", "partfs.rename"),
        "replication.apply",
    ]
)
#: Passed after a lost reply, and at the end of an epoch: not by every commit.
OF_RAISE: Final = points(["csnlog.raise"])
OF_ROLLOVER: Final = points(["csnlog.rollover"])
#: What a merge passes on its way; the pack is that of a merge of small parts.
OF_COMPACTION: Final = points(
    [
        *("agent.compact", "partfs.write", "partfs.fsync", "partfs.rename", "agent.seal", "agent.pack"),
        *("replication.push", "replication.lock", "agent.catalog", "csnlog.commit", "replication.apply"),
    ]
)
#: What a collection passes: with its batch found, and with its rows gone and the files still there.
OF_COLLECT: Final = points(["agent.collect"])
#: What a replica passes that takes a file of a transaction whose home is another one.
OF_UPLOADS: Final = points(["agent.upload"])

TESTED: Final = frozenset(
    [
        *(*OF_COMMITS, *OF_PEERS, *OF_BOTH, *OF_RAISE, *OF_ROLLOVER),  # test_power_cuts.py
        *(*OF_COMPACTION, *OF_COLLECT),  # test_power_cuts_history.py
        *OF_UPLOADS,  # test_power_cuts_uploads.py
    ]
)
