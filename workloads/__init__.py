"""Workloads: what the demo, the benchmarks and the tests share, outside of what is installed.

TPC-H data and queries, what single agents say over HTTP, the histories of clients and the checks of them,
comparison of rows between engines, Spark sessions, child processes that are spoken to by lines of JSON.
It uses the product as its users do: the client, the local cluster, the Spark helpers, HTTP. It imports
nothing from inside the agent, since what is checked must not help in its own check; of the log it knows how
a CSN is made of epoch and number (docs/adr/0018-the-demo-is-not-installed.md).
"""

from __future__ import annotations
