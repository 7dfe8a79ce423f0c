"""The command with which an operator lets all replicas pass over a record of the log that stops them.

May import: csnlog, csnlog/cluster, csnlog/core, csnlog/zookeeper, replica_agent/config.
Entry points: `python -m tidelock.replica_agent.skipping.main`.
On failure: the word is one multi, so it is given or not; run the command again, and it says which.
"""
