"""Benchmarks: `make bench`, or `python -m bench [PART ...]`; docs/performance.md says what they found.

Every figure stands beside something measured in the same run: commits beside other table formats and beside
ZooKeeper's own synchronous creates, Spark queries over a snapshot beside the same queries over the same bytes
as local files, a load beside cp and fsync of what it has written.
"""
