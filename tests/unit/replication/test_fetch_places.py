"""Places for parts: bounds of number and bytes, in turns, and given back whatever happens."""

from __future__ import annotations

import asyncio

from tests.support.aio import until
from tidelock.replication.fetch_places import FetchPlaces


class Holders:
    """Parts that want a place, and keep it until they are let go."""

    def __init__(self, places: FetchPlaces) -> None:
        self.places = places
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self.passing: set[str] = set()

    async def enter(self, name: str, length: int, owner: str | None = "one") -> None:
        """Want a place for a part of so many bytes; return when the task has had its first steps."""
        self._gates[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._keep(name, length, owner))
        await asyncio.sleep(0)

    async def leave(self, name: str) -> None:
        """Let a part go, and wait for the end of its task."""
        self._gates[name].set()
        await self.tasks[name]
        await asyncio.sleep(0)

    async def _keep(self, name: str, length: int, owner: str | None) -> None:
        async with self.places.taken(length, owner) as place:
            while not self._gates[name].is_set():
                self.inside.append(name)
                try:
                    await self._gates[name].wait()
                finally:
                    self.inside.remove(name)
                if name in self.passing:
                    self.passing.remove(name)
                    self._gates[name].clear()
                    await self.places.pass_on(place, owner)

    async def pass_on(self, name: str) -> None:
        """Let a part that has a place pass it on, and go on later."""
        self.passing.add(name)
        self._gates[name].set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_places_are_bounded_by_number() -> None:
    """The third part waits until one of two has gone."""
    holders = Holders(FetchPlaces(2, 100))
    for name in "abc":
        await holders.enter(name, 1)
    assert holders.inside == ["a", "b"]
    await holders.leave("a")
    await until(lambda: holders.inside == ["b", "c"])


async def test_places_are_bounded_by_bytes_and_in_order() -> None:
    """A part that does not fit waits, and a smaller one behind it does not pass it."""
    holders = Holders(FetchPlaces(9, 100))
    for name, length in (("a", 60), ("b", 60), ("c", 10)):
        await holders.enter(name, length)
    assert holders.inside == ["a"]
    await holders.leave("a")
    await until(lambda: holders.inside == ["b", "c"])


async def test_the_owners_of_parts_take_turns() -> None:
    """An import of many parts is under way; a transaction of two does not wait for all of them."""
    holders = Holders(FetchPlaces(1, 100))
    for name, owner in (
        ("a1", "A"),
        ("a2", "A"),
        ("a3", "A"),
        ("a4", "A"),
        ("b1", "B"),
        ("b2", "B"),
        ("c1", "C"),
    ):
        await holders.enter(name, 10, owner)
    order = []
    while holders.inside:
        order += holders.inside
        await holders.leave(holders.inside[0])
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
    assert not holders.places._waiting


async def test_committed_parts_have_every_second_turn() -> None:
    """The log waits for them, however many transactions are open."""
    holders = Holders(FetchPlaces(1, 100))
    names = [("a1", "A"), ("b1", "B"), ("c1", "C"), ("d1", "D"), ("x1", None), ("x2", None), ("x3", None)]
    for name, owner in names:
        await holders.enter(name, 10, owner)
    order = []
    while holders.inside:
        order += holders.inside
        await holders.leave(holders.inside[0])
    assert order == ["a1", "b1", "x1", "c1", "x2", "d1", "x3"]


async def test_a_long_part_passes_its_place_on() -> None:
    """Others have their turn after each of its ranges; nobody loses a place, also when it is cancelled."""
    holders = Holders(FetchPlaces(1, 100))
    await holders.enter("long", 100, "A")
    await holders.pass_on("long")
    assert holders.inside == ["long"]  # nobody waits
    await holders.enter("b", 10, "B")
    await holders.pass_on("long")
    assert holders.inside == ["b"]
    await holders.leave("b")
    await until(lambda: holders.inside == ["long"])
    await holders.enter("c", 10, "C")
    await holders.pass_on("long")
    holders.tasks["long"].cancel()
    await asyncio.sleep(0)
    await holders.leave("c")
    await holders.enter("d", 100, "D")
    assert holders.inside == ["d"]
    await holders.leave("d")
    assert holders.places._parts_left == 1


async def test_a_part_that_is_larger_than_all_places_goes_alone() -> None:
    """It is not kept waiting forever, and nothing is beside it."""
    holders = Holders(FetchPlaces(9, 100))
    for name, length in (("a", 1), ("b", 500), ("c", 1)):
        await holders.enter(name, length)
    assert holders.inside == ["a"]
    await holders.leave("a")
    await until(lambda: holders.inside == ["b"])
    await holders.leave("b")
    await until(lambda: holders.inside == ["c"])


async def test_a_part_that_is_not_wanted_any_more_loses_no_place() -> None:
    """Cancelled while it waits or in the moment of its turn, it leaves the place to the next one."""
    holders = Holders(FetchPlaces(1, 100))
    for name in "abcd":
        await holders.enter(name, 100, owner="one" if name == "a" else "two")
    holders.tasks["b"].cancel()
    holders._gates["a"].set()
    await holders.tasks["a"]  # the turn of c has come, and it has not run since
    holders.tasks["c"].cancel()
    await until(lambda: holders.inside == ["d"])
    await holders.leave("d")
    await holders.enter("e", 100)
    assert holders.inside == ["e"]
    await holders.leave("e")
