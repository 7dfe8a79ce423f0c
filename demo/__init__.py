"""The demo: the product on real data, judged by what its clients know and by a second engine.

A local cluster of three replicas, the eight TPC-H tables, twelve concurrent writers, and Spark pinned to
one replica, which is killed in the middle of a query and, another time, frozen. Nothing here takes part in
the protocol: the demo uses the same client library, Spark helpers and HTTP routes as any user, and it
verifies every answer of an agent. The results of Spark are compared with the results of DuckDB over the bytes
of another replica, and with the answers that the writers received.

`python -m demo` runs it in a checkout (`make demo`); `demo.command.run` is the entry point.
"""

from __future__ import annotations
