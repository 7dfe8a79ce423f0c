"""Replication: the durable copies around a commit, and the snapshot CSN that follows from them.

It holds durable part files, the push of sealed transactions and their copies, the fetch of missing parts, the
apply of records, and the executed prefix of the log. It promises that a copy is counted only when file and
catalog row are durable there, and that a replica never claims a CSN whose parts it has not all verified
(rules copies, apply; I4, I9 and I10). It does not decide what is committed, which is the business of
tidelock.csnlog, and it serves no client: that is the business of tidelock.replica_agent.
"""
