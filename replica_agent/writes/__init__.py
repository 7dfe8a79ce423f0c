"""Writes through the file system: the staging folders of transactions, as Spark's committer uses them.

``/transactions/<token>/<namespace>/<table>/...`` (design 5.1, docs/protocol.md section 11). What is written
there becomes parts when the job that wrote it is sealed, and is gone with its transaction otherwise.
"""
