"""Compaction: small parts of a partition become few large ones, without a change of any row at any CSN."""
