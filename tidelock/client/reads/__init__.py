"""Reads: snapshots, rows, the change feed, history, and the audit."""
