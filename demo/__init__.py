"""The demo: the product on real data, judged by what its clients know and by a second engine.

A local cluster of three replicas, the eight TPC-H tables, twelve concurrent writers, and Spark pinned to
one replica, which is killed in the middle of a query and, another time, frozen. Nothing here takes part in
the protocol: the demo uses the same client library, Spark helpers and HTTP routes as any user, and it
believes no agent on its word. What Spark reads is compared with what DuckDB makes of the bytes of another
replica, and with what the writers were told.

`python -m demo` runs it in a checkout (`make demo`); `demo.command.run` is the way in.
"""

from __future__ import annotations
