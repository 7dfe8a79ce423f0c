"""The client library for programs with an event loop: the synchronous client, run in threads.

    from tidelock.aio import connect

    async with connect("http://127.0.0.1:8801") as db:
        async with db.begin() as tx:
            await tx.insert("orders", orders)
            await tx.insert("lineitem", lines)
        async with db.snapshot() as snap:
            async for batch in snap.scan("orders").to_batches():
                ...

Each class has the methods of its twin in `tidelock.client`, with the same arguments, results and errors, and
makes no decision of its own about outcomes, repetitions or leases (docs/adr/0057-an-asyncio-client.md). This
package decides three things: which thread runs a call (`threads`), what becomes of a call whose task is
cancelled, and when a transaction begins (`database`). docs/async.md tells both to users.
"""

from __future__ import annotations

from tidelock.aio.database import AsyncDatabase, AsyncMembership, connect
from tidelock.aio.reads import (
    AsyncBatchStream,
    AsyncChanges,
    AsyncScan,
    AsyncSnapshot,
    AsyncStream,
    AsyncSubscription,
)
from tidelock.aio.transactions import AsyncJoinedTransaction, AsyncTransaction, join
from tidelock.aio.twins import Opening

__all__ = [
    "AsyncBatchStream",
    "AsyncChanges",
    "AsyncDatabase",
    "AsyncJoinedTransaction",
    "AsyncMembership",
    "AsyncScan",
    "AsyncSnapshot",
    "AsyncStream",
    "AsyncSubscription",
    "AsyncTransaction",
    "Opening",
    "connect",
    "join",
]
