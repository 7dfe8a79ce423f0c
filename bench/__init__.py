"""Benchmarks: ``python -m bench`` (or ``make bench``) measures, prints ratios, writes JSON and draws a plot.

Every figure stands beside something measured in the same run: commits beside ZooKeeper's own synchronous
creates on the same server, Spark queries over a snapshot beside the same queries over the same bytes as local
files.
"""
