"""The store in memory behaves like ZooKeeper, so tests and simulation may rely on it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from tests.support.zookeeper.store_suite import node, plain
from tests.support.zookeeper.world import ZkWorld
from tidelock.csnlog.core.results import Ok, Unknown
from tidelock.csnlog.core.store import Check, Create, Delete, Op, SetData, Store
from tidelock.csnlog.testing.memory_store import MemoryEnsemble


@pytest.fixture
async def world(zookeeper: str, zk_root: str) -> AsyncIterator[ZkWorld]:
    """A world on the session's ZooKeeper."""
    async with ZkWorld(zookeeper, zk_root) as world:
        yield world


@pytest.mark.parametrize("seed", range(8))
async def test_the_store_in_memory_answers_like_the_real_one(world: ZkWorld, seed: int) -> None:
    """The same random multis give the same values, the same errors at the same elements, the same tree."""
    source = random.Random(seed)
    ensemble = MemoryEnsemble()
    pairs: list[tuple[Store, Store]] = [(await world.store(), ensemble.store()) for _ in range(2)]
    for step in range(120):
        ops = tuple(_random_op(source) for _ in range(source.randint(1, 4)))
        real, memory = source.choice(pairs)
        expected, found = await memory.multi(ops), await real.multi(ops)
        if isinstance(expected, Unknown):
            assert isinstance(found, Unknown), (step, ops)
        elif isinstance(expected, Ok):
            assert isinstance(found, Ok), (step, ops)
            assert plain(found.value) == plain(expected.value), (step, ops)
        else:
            assert found == expected, (step, ops)
    real, memory = pairs[0]
    assert await _tree(real) == await _tree(memory)


def _random_op(source: random.Random) -> Op:
    path = source.choice(["a", "b", "a/c", "a/d", "b/c", "a/c/d"])
    version = source.choice([0, 0, 0, 1, 2, 3])
    match source.randrange(8):
        case 0:
            return Check(path, version)
        case 1 | 2:
            return SetData(path, source.randbytes(3), source.choice([None, None, version]))
        case 3:
            return Delete(path, version)
        case 4:
            return Create(f"{path}/s-", source.randbytes(3), sequential=True)
        case 5:
            return Create(path, source.randbytes(3), ephemeral=source.random() < 0.3)
        case _:
            return Create(path, source.randbytes(3))


async def _tree(store: Store, path: str = "") -> dict[str, tuple[bytes, int, int, bool]]:
    found = await node(store, path)
    tree = {path: (found.data, found.version, found.children, found.owner_session != 0)}
    listed = await store.children(path)
    assert isinstance(listed, Ok)
    for name in sorted(listed.value):
        tree |= await _tree(store, f"{path}/{name}" if path else name)
    return tree
