"""Commits of many clients at one agent, which arrive at once or at a steady pace; each has a connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Final

import aiohttp
import msgspec

from bench.tools.workload import batch
from tidelock.client.writes.whole_writes import small_streams
from tidelock.wire.writes import ReservedTids, TableRows, TidsRequest, WriteHead, encode

#: Tids of one request.
_BLOCK: Final = 64
_PATIENCE_S: Final = 600.0

#: Answers by their HTTP status.
Answers = dict[int, int]


@contextlib.contextmanager
def crowd(api: str, table: str, count: int) -> Iterator[Callable[[float], Future[Answers]]]:
    """Yield a call that begins to send so many commits of one row and returns their answers to come.

    Its argument is the time between two commits in seconds; with 0 all are sent before the first answer.
    The clients are in a process of their own: the one that looks at the agent must not wait for their work.

    Args:
        api: Address of the agent's API.
        table: Table of the rows.
        count: Number of commits.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(_rows).result()  # it has loaded its modules then
        yield lambda interval_s: pool.submit(_in_process, api, table, count, interval_s)


def _rows() -> bytes:
    streams = small_streams({"": batch(1, 1).slice(0, 1)})
    assert streams is not None, "one row is small"
    return streams[""]


def _in_process(api: str, table: str, count: int, interval_s: float) -> Answers:
    return asyncio.run(_commit_all(api, table, count, interval_s))


async def _commit_all(api: str, table: str, count: int, interval_s: float) -> Answers:
    stream = _rows()
    timeout = aiohttp.ClientTimeout(total=_PATIENCE_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        blocks = -(-count // _BLOCK)
        tids = [tid for _ in range(blocks) for tid in await _reserve(session, api)]
        bodies = [
            encode(WriteHead(tid=tid, rows=(TableRows(table, len(stream)),)), [stream])
            for tid in itertools.islice(tids, count)
        ]
        begun = time.monotonic()
        commits = (
            _commit(session, api, body, begun + number * interval_s) for number, body in enumerate(bodies)
        )
        return dict(Counter(await asyncio.gather(*commits)))


async def _reserve(session: aiohttp.ClientSession, api: str) -> Sequence[str]:
    body = msgspec.json.encode(TidsRequest(_BLOCK))
    async with session.post(f"{api}/api/v1/tids", data=body) as response:
        response.raise_for_status()
        return list(msgspec.json.decode(await response.read(), type=ReservedTids).tids())


async def _commit(session: aiohttp.ClientSession, api: str, body: bytes, due: float) -> int:
    await asyncio.sleep(due - time.monotonic())
    async with session.post(f"{api}/api/v1/commits", data=body) as response:
        await response.read()
        return response.status
