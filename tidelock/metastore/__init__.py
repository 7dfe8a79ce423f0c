"""Tables by name in Spark SQL: what Spark reads from a Hive metastore, over snapshots of a cluster.

A process of its own (`tidelock metastore`), which is a client of the agents, keeps nothing on a disk and may
run several times. Spark asks it for tables and partitions; the rows come from the agents.
"""
