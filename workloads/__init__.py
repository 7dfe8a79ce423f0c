"""Workloads: code that the demo, the benchmarks and the tests share; it is not installed.

It contains TPC-H data and queries, access to single agents over HTTP, the histories of clients and their
checks, comparison of rows between engines, Spark sessions, and child processes driven by lines of JSON.
It uses the product as its users do: the client, the local cluster, the Spark helpers, HTTP. It imports
no module of the agent, since the checked code must not take part in its own check. Of the log it knows only
how a CSN is composed of epoch and number (docs/adr/0018-the-demo-is-not-installed.md).
"""

from __future__ import annotations
