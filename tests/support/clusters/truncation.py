"""Truncates the log of a real cluster as an agent does: `csn/tail` moves, then older records are deleted."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.support.zookeeper.store_suite import done
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.ids import CSN_NONE, Csn
from tidelock.csnlog.core.results import Ok
from tidelock.csnlog.core.store import Delete, SetData
from tidelock.csnlog.reading import read_page
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore

_PAGE: Final = 100


def truncate(connect: str, tail: int) -> None:
    """Let a cluster's tail pass to a CSN that every replica has applied, and delete the records below it."""
    asyncio.run(_truncate(connect, Csn(tail)))


async def _truncate(connect: str, tail: Csn) -> None:
    store = ZkStore(connect, session_timeout_s=10.0, request_timeout_s=30.0, multi_bytes_max=1 << 19)
    await store.open()
    try:
        before = await store.get(tree.TAIL)
        assert isinstance(before, Ok)
        records = await read_page(store, CSN_NONE, _PAGE, read_ahead=16)
        below = [Delete(tree.record(one.csn), 0) for one in records if one.csn < tail]
        if codec.decode_csn(before.value.data) == CSN_NONE:
            below.insert(0, Delete(tree.record(CSN_NONE), 0))  # a page begins behind its position
        await done(store, SetData(tree.TAIL, codec.encode_csn(tail), before.value.version))
        await done(store, *below)
    finally:
        await store.close()
