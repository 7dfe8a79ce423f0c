"""The CSN log: one sequence of commit records in ZooKeeper that decides what is committed, in which order.

It holds transaction ids and commit sequence numbers, commit records and their bytes, visibility as one pure
function, the group committer, the resolution of unknown outcomes, epochs and the tail. It promises that
creating a record is the only commit point, that a transaction id has at most one CSN, that the order of CSNs
is the order of the log, and that every outcome can be learned after any failure (rules commit, outcome; I1,
I2 and I8). It does not promise that a part named in a record is present anywhere: that is the business of
tidelock.replication.
"""
