"""The duties of every store: one suite, run against the store in memory and against a real ZooKeeper.

A test class inherits from `StoreSuite` and provides the fixture `world`, which makes stores on one ensemble.
Where a test says that something did not happen, it first reads through the same session: ZooKeeper delivers a
watch's event before the answer of a later read, so what has not come by then does not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import pytest

from tests.support.aio import until, until_async
from tidelock.csnlog.core.results import Ok, Reason, Refused, Unknown
from tidelock.csnlog.core.store import (
    Check,
    Create,
    Delete,
    LinkState,
    Node,
    Op,
    SetData,
    Store,
    Written,
    multi_bytes,
)

#: Limit of the stores that a world makes.
MULTI_BYTES_MAX = 64 * 1024


class World(Protocol):
    """An empty ensemble below a separate root, and the stores on it."""

    root: str

    async def store(self) -> Store:
        """Return a connected store with a separate session."""

    async def expire(self, store: Store) -> None:
        """Let the session of a store expire and be replaced; return when the store knows."""


class Counter:
    """A watch that counts."""

    def __init__(self) -> None:
        self.fired = 0

    def __call__(self) -> None:
        """Count one call."""
        self.fired += 1


async def done(store: Store, *ops: Op) -> tuple[object, ...]:
    """Apply a multi that must succeed; return its values."""
    result = await store.multi(ops)
    assert isinstance(result, Ok), result
    return result.value


def plain(values: tuple[object, ...]) -> tuple[object, ...]:
    """Return the values of a multi, for each set its version alone: stamps differ from store to store."""
    return tuple(value.version if isinstance(value, Written) else value for value in values)


def facts(node: Node) -> tuple[bytes, int, int, int]:
    """Return data, version, children and owner of a znode."""
    return node.data, node.version, node.children, node.owner_session


async def node(store: Store, path: str, watch: Callable[[], None] | None = None) -> Node:
    """Read a znode that must exist."""
    result = await store.get(path, watch=watch)
    assert isinstance(result, Ok), result
    return result.value


async def settle(store: Store) -> None:
    """Return when every event of this store's session so far has been delivered."""
    assert isinstance(await store.exists(""), Ok)
    await asyncio.sleep(0)


class StoreSuite:
    """The tests."""

    async def test_a_multi_gives_one_value_per_element(self, world: World) -> None:
        """Path, new version or None; an element sees what those before it did."""
        store = await world.store()
        values = await done(
            store,
            Create("a", b"0"),
            Check("a", 0),
            SetData("a", b"1", 0),
            SetData("a", b"2"),
            Check("a", 2),
            Create("a/s-", b"x", sequential=True),
            Delete("a/s-0000000000", 0),
        )
        assert plain(values) == ("a", None, 1, 2, None, "a/s-0000000000", None)
        assert facts(await node(store, "a")) == (b"2", 2, 0, 0)

    async def test_everything_that_a_multi_writes_has_one_stamp(self, world: World) -> None:
        """So a home learns the stamp of its record from the set of ``csn/head`` beside it (Z19)."""
        store = await world.store()
        await done(store, Create("head"), Create("log"), Create("other"))
        head, path, other = await done(
            store, SetData("head"), Create("log/s-", b"x", sequential=True), SetData("other", b"y", 0)
        )
        assert isinstance(head, Written)
        assert isinstance(other, Written)
        assert head.stamp == other.stamp == (await node(store, str(path))).created

    async def test_the_roll_over_tells_the_stamp_of_its_record(self, world: World) -> None:
        """The END record, the directory of the next epoch and the set behind them have one stamp."""
        store = await world.store()
        await done(store, Create("csn"), Create("csn/0"), Create("csn/epoch"))
        end, folder, epoch = await done(
            store, Create("csn/0/csn-", sequential=True), Create("csn/1"), SetData("csn/epoch", b"1")
        )
        assert isinstance(epoch, Written)
        assert (await node(store, str(end))).created == epoch.stamp
        assert (await node(store, str(folder))).created == epoch.stamp

    async def test_stamps_grow_from_write_to_write(self, world: World) -> None:
        """Over all stores and directories; a znode keeps the stamp of its creation when it is set."""
        one, two = await world.store(), await world.store()
        await done(one, Create("a"), Create("b"))
        stamps = [(await node(one, "a")).created]
        for store, path in ((one, "a"), (two, "b"), (two, "a"), (one, "b")):
            (written,) = await done(store, SetData(path, b"new"))
            assert isinstance(written, Written)
            stamps.append(written.stamp)
        numbers = [stamp.zxid for stamp in stamps]
        assert numbers == sorted(set(numbers))
        assert (await node(two, "a")).created == stamps[0]
        seen = await two.exists("b")
        assert isinstance(seen, Ok)
        assert seen.value is not None
        assert seen.value.created == stamps[0]

    async def test_an_empty_multi_is_ok(self, world: World) -> None:
        """An empty multi does nothing and succeeds."""
        assert await (await world.store()).multi(()) == Ok(())

    async def test_sequence_numbers_count_every_create(self, world: World) -> None:
        """Creates of any kind count, deletes do not, and each directory has its own counter (Z1)."""
        store = await world.store()
        await done(store, Create("a"), Create("b"))
        made = [
            (await done(store, Create("a/s-", sequential=True)))[0],
            (await done(store, Create("a/plain")))[0],
            (await done(store, Create("a/t-", sequential=True)))[0],
            (await done(store, Delete("a/plain", 0), Delete("a/s-0000000000", 0)))[0],
            (await done(store, Create("a/s-", sequential=True)))[0],
            (await done(store, Create("b/s-", sequential=True)))[0],
        ]
        assert made == [
            *("a/s-0000000000", "a/plain", "a/t-0000000002", None),
            *("a/s-0000000003", "b/s-0000000000"),
        ]

    async def test_a_refused_multi_consumes_no_number(self, world: World) -> None:
        """CSNs stay dense: a multi that was refused after its create leaves no gap (Z2)."""
        store = await world.store()
        await done(store, Create("a"))
        for _ in range(3):
            assert await store.multi((Create("a/s-", sequential=True), Check("a", 9))) == Refused(
                Reason.BAD_VERSION, 1
            )
        assert await done(store, Create("a/s-", sequential=True)) == ("a/s-0000000000",)

    async def test_sequence_numbers_within_one_multi(self, world: World) -> None:
        """Each create of a multi takes the next one; a name that is taken already takes none."""
        store = await world.store()
        await done(store, Create("a"))
        creates = (Create("a/s-", sequential=True), Create("a/t-", sequential=True))
        assert await done(store, *creates) == ("a/s-0000000000", "a/t-0000000001")
        taken = (Create("a/s-", sequential=True), Create("a/s-0000000000"))
        assert await store.multi(taken) == Refused(Reason.NODE_EXISTS, 1)
        assert (await done(store, creates[0]))[0] == "a/s-0000000002"

    async def test_sequence_numbers_of_a_directory_made_again(self, world: World) -> None:
        """They begin at 0 again: a number is unique only where its directory is never deleted (ABA)."""
        store = await world.store()
        create = Create("a/s-", sequential=True)
        await done(store, Create("a"), create)
        await done(store, Delete("a/s-0000000000", 0), Delete("a", 0), Create("a"))
        assert await done(store, create) == ("a/s-0000000000",)

    @pytest.mark.parametrize(
        ("op", "reason"),
        [
            (Check("a", 5), Reason.BAD_VERSION),
            (Check("none", 0), Reason.NO_NODE),
            (SetData("a", b"", 5), Reason.BAD_VERSION),
            (SetData("none", b""), Reason.NO_NODE),
            (Create("a"), Reason.NODE_EXISTS),
            (Create("none/b"), Reason.NO_NODE),
            (Delete("a", 5), Reason.BAD_VERSION),
            (Delete("a", 0), Reason.NOT_EMPTY),
            (Delete("none", 0), Reason.NO_NODE),
        ],
    )
    @pytest.mark.parametrize("before", [0, 1, 3])
    async def test_a_refused_multi_names_its_element_and_changes_nothing(
        self, world: World, op: Op, reason: Reason, before: int
    ) -> None:
        """The index belongs to the refused element, not to the companions that were rolled back."""
        store = await world.store()
        await done(store, Create("a", b"old"), Create("a/child"))
        ops = (*(SetData("a/child", b"new") for _ in range(before)), op, Create("late"), Check("none", 7))
        assert await store.multi(ops) == Refused(reason, before)
        assert facts(await node(store, "a/child")) == (b"", 0, 0, 0)
        assert await store.exists("late") == Ok(None)

    async def test_compare_and_set_lets_one_of_two_through(self, world: World) -> None:
        """Two stores with the same version: the first wins, the second is refused."""
        one, two = await world.store(), await world.store()
        await done(one, Create("a"))
        assert plain(await done(one, SetData("a", b"one", 0))) == (1,)
        assert await two.multi((SetData("a", b"two", 0),)) == Refused(Reason.BAD_VERSION, 0)
        assert (await node(one, "a")).data == b"one"

    async def test_a_znode_made_again_starts_at_version_zero(self, world: World) -> None:
        """A versioned delete meant for the former boot succeeds: no code may rely on it (Z10)."""
        store = await world.store()
        await done(store, Create("a"), SetData("a"), Delete("a", 1), Create("a", b"second life"))
        assert await done(store, Check("a", 0), Delete("a", 0)) == (None, None)

    async def test_another_session_cannot_tell_a_znode_made_again(self, world: World) -> None:
        """Its check of version 0 passes; the ephemeral one of a new session differs by its owner alone."""
        one, two = await world.store(), await world.store()
        await done(one, Create("a", b"1"), Create("e", ephemeral=True))
        seen = await node(two, "e")
        await done(one, Delete("a", 0), Create("a", b"2"))
        await world.expire(one)
        await until(lambda: one.link is LinkState.CONNECTED and one.session != seen.owner_session)
        await done(one, Create("e", ephemeral=True))
        assert (await node(two, "e")).owner_session == one.session != seen.owner_session
        assert (await node(two, "e")).version == seen.version == 0
        assert await done(two, Check("a", 0), Delete("e", 0)) == (None, None)

    async def test_a_multi_of_a_session_that_has_ended_is_not_applied(self, world: World) -> None:
        """Expiry and the writes of a session are ordered: no write of it is applied after its end."""
        store, other = await world.store(), await world.store()
        await done(store, Create("a"))
        first = store.session
        await world.expire(store)
        results = [await store.multi((SetData("a"),)) for _ in range(3)]
        await until(lambda: store.link is LinkState.CONNECTED and store.session != first)
        await settle(other)
        applied = sum(isinstance(result, Ok) for result in results)
        assert (await node(store, "a")).version == applied

    async def test_what_is_not_there(self, world: World) -> None:
        """A read of data answers NO_NODE, a check of existence None."""
        store = await world.store()
        assert await store.get("none") == Refused(Reason.NO_NODE)
        assert await store.children("none") == Refused(Reason.NO_NODE)
        assert await store.exists("none") == Ok(None)

    async def test_facts_and_children_come_without_data(self, world: World) -> None:
        """Metadata has no data; children are names only; the root is the empty path."""
        store = await world.store()
        await done(store, Create("a", b"data"), Create("a/x"), Create("a/y"), Create("a/y/z"))
        found = await store.exists("a")
        assert isinstance(found, Ok)
        assert found.value is not None
        assert facts(found.value) == (b"", 0, 2, 0)
        listed = await store.children("a")
        assert isinstance(listed, Ok)
        assert sorted(listed.value) == ["x", "y"]
        assert await store.children("") == Ok(("a",))
        assert await store.children("a/x") == Ok(())

    async def test_data_of_any_bytes_and_names_of_any_letters(self, world: World) -> None:
        """Bytes are returned unchanged, also an empty text; a name may be any text without a slash."""
        store = await world.store()
        data = bytes(range(256))
        await done(store, Create("größe-表", data), Create("empty"))
        assert (await node(store, "größe-表")).data == data
        assert (await node(store, "empty")).data == b""
        listed = await store.children("")
        assert isinstance(listed, Ok)
        assert set(listed.value) == {"größe-表", "empty"}

    async def test_requests_of_one_store_are_applied_in_order(self, world: World) -> None:
        """Requests that are sent without waiting for one another keep their order, reads included."""
        store = await world.store()
        await done(store, Create("a"))
        count = 300
        writes = asyncio.gather(*(done(store, SetData("a", str(n).encode())) for n in range(count)))
        written, seen = await asyncio.gather(writes, node(store, "a"))
        assert [plain(values) for values in written] == [(n + 1,) for n in range(count)]
        assert facts(seen) == (str(count - 1).encode(), count, 0, 0)

    async def test_a_request_above_the_limit_is_refused_before_it_is_sent(self, world: World) -> None:
        """At the limit it passes, one byte above it is refused, and the connection stays (Z6)."""
        store = await world.store()
        await done(store, Create("a"))
        session = store.session
        room = MULTI_BYTES_MAX - multi_bytes((SetData("a"), Check("a", 0)), world.root)
        fits = (SetData("a", bytes(room)), Check("a", 1))
        assert isinstance(await store.multi(fits), Ok)
        over = (SetData("a", bytes(room + 1)), Check("a", 2))
        assert await store.multi(over) == Refused(Reason.TOO_LARGE)
        assert store.link is LinkState.CONNECTED
        assert store.session == session
        assert (await node(store, "a")).version == 1

    async def test_a_watch_fires_once_at_the_next_change(self, world: World) -> None:
        """One event for the first change, none for the second, none for another znode."""
        reader, writer = await world.store(), await world.store()
        await done(writer, Create("a"), Create("b"))
        watch = Counter()
        await node(reader, "a", watch)
        await done(writer, SetData("b", b"1"))
        await settle(reader)
        assert watch.fired == 0
        await done(writer, SetData("a", b"1"))
        await until(lambda: watch.fired == 1)
        await done(writer, SetData("a", b"2"))
        assert (await node(reader, "a")).data == b"2"
        await settle(reader)
        assert watch.fired == 1

    async def test_a_watch_of_a_missing_znode_tells_of_its_creation(self, world: World) -> None:
        """exists() arms a watch also on a missing znode; get() and children() are refused and arm none."""
        reader, writer = await world.store(), await world.store()
        created, refused = Counter(), Counter()
        assert await reader.exists("a", watch=created) == Ok(None)
        assert await reader.get("a", watch=refused) == Refused(Reason.NO_NODE)
        assert await reader.children("a", watch=refused) == Refused(Reason.NO_NODE)
        await done(writer, Create("a"))
        await until(lambda: created.fired == 1)
        await done(writer, SetData("a"), Delete("a", 1))
        await settle(reader)
        assert (created.fired, refused.fired) == (1, 0)

    async def test_a_watch_of_children_tells_of_names_only(self, world: World) -> None:
        """A new or deleted child fires the watch; new data of the parent or of a child does not."""
        reader, writer = await world.store(), await world.store()
        await done(writer, Create("a"), Create("a/x"))
        watch = Counter()
        assert await reader.children("a", watch=watch) == Ok(("x",))
        await done(writer, SetData("a", b"1"), SetData("a/x", b"1"), Create("a/x/deeper"))
        await settle(reader)
        assert watch.fired == 0
        await done(writer, Create("a/y"))
        await until(lambda: watch.fired == 1)
        assert isinstance(await reader.children("a", watch=watch), Ok)
        await done(writer, Delete("a/y", 0))
        await until(lambda: watch.fired == 2)

    async def test_a_delete_fires_every_watch_of_the_znode(self, world: World) -> None:
        """Its data watch, its own child watch, and that of its parent."""
        reader, writer = await world.store(), await world.store()
        await done(writer, Create("a"), Create("a/x"))
        watches = [Counter(), Counter(), Counter()]
        await node(reader, "a/x", watches[0])
        await reader.children("a/x", watch=watches[1])
        await reader.children("a", watch=watches[2])
        await done(writer, Delete("a/x", 0))
        await until(lambda: [watch.fired for watch in watches] == [1, 1, 1])

    async def test_the_same_watch_on_the_same_znode_is_armed_once(self, world: World) -> None:
        """However often a callback is passed, one change is one call: a reader may re-arm at every read."""
        reader, writer = await world.store(), await world.store()
        await done(writer, Create("a"), Create("b"))
        watch = Counter()
        for _ in range(5):
            await node(reader, "a", watch)
            await reader.exists("a", watch=watch)
        await done(writer, SetData("a"))
        await until(lambda: watch.fired == 1)
        await settle(reader)
        assert watch.fired == 1
        await node(reader, "a", watch)
        await node(reader, "b", watch)
        await done(writer, SetData("a"), SetData("b"))
        await until(lambda: watch.fired == 3)

    async def test_a_refused_multi_fires_no_watch(self, world: World) -> None:
        """Nothing has changed, so nothing is reported."""
        store = await world.store()
        await done(store, Create("a"))
        watch = Counter()
        await node(store, "a", watch)
        assert isinstance(await store.multi((SetData("a"), Check("a", 9))), Refused)
        await settle(store)
        assert watch.fired == 0

    async def test_an_ephemeral_znode_lives_as_long_as_its_session(self, world: World) -> None:
        """It names its session, and it is deleted at once when its store is closed."""
        owner, other = await world.store(), await world.store()
        await done(owner, Create("a"), Create("a/e", b"x", ephemeral=True), Create("a/p"))
        assert facts(await node(other, "a/e")) == (b"x", 0, 0, owner.session)
        gone = Counter()
        await node(other, "a/e", gone)
        await owner.close()
        await until(lambda: gone.fired == 1)
        assert await other.children("a") == Ok(("p",))

    async def test_an_ephemeral_znode_has_no_children(self, world: World) -> None:
        """The write certainly was not applied; but no Reason of ours fits, so the answer is Unknown."""
        store = await world.store()
        await done(store, Create("e", ephemeral=True))
        assert isinstance(await store.multi((Create("e/child"),)), Unknown)
        assert await store.children("e") == Ok(())

    async def test_an_expired_session_is_replaced_by_a_new_one(self, world: World) -> None:
        """Another number, told to the listeners; ephemerals gone; every armed watch has fired once."""
        store, other = await world.store(), await world.store()
        await done(store, Create("a"), Create("e", ephemeral=True))
        first = store.session
        seen: list[tuple[LinkState, int]] = []
        store.on_change(lambda: seen.append((store.link, store.session)))
        watch, children = Counter(), Counter()
        await node(store, "a", watch)
        await store.children("a", watch=children)
        await world.expire(store)
        await until(lambda: store.link is LinkState.CONNECTED and store.session != first)
        assert (watch.fired, children.fired) == (1, 1)
        assert (LinkState.SUSPENDED, first) in seen
        assert seen[-1] == (LinkState.CONNECTED, store.session)
        assert await other.exists("e") == Ok(None)
        await done(store, Create("e", ephemeral=True))
        assert (await node(other, "e")).owner_session == store.session

    async def test_a_closed_store_refuses(self, world: World) -> None:
        """After close() nothing is sent any more; closing again does no harm."""
        store, other = await world.store(), await world.store()
        await done(store, Create("a"))
        await store.close()
        assert store.link is LinkState.SUSPENDED
        assert await store.multi((SetData("a"),)) == Refused(Reason.NOT_CONNECTED)
        assert await store.get("a") == Refused(Reason.NOT_CONNECTED)
        assert await store.exists("a") == Refused(Reason.NOT_CONNECTED)
        assert await store.children("") == Refused(Reason.NOT_CONNECTED)
        await store.close()
        assert (await node(other, "a")).version == 0

    async def test_two_stores_see_each_other(self, world: World) -> None:
        """Stores of one world share its tree and have separate sessions."""
        one, two = await world.store(), await world.store()
        assert one.session != two.session
        assert 0 not in {one.session, two.session}
        await done(one, Create("a", b"x"))

        async def seen() -> bool:
            found = await two.exists("a")
            return isinstance(found, Ok) and found.value is not None

        await until_async(seen)
