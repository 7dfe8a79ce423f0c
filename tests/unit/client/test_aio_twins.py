"""The classes with await have the methods of their twins: the same names, arguments and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, assert_type

import pyarrow as pa
import pytest

from tests.support.replicas.fake_agent import FakeCluster, token_of
from tidelock import aio, client
from tidelock.aio import (
    AsyncBatchStream,
    AsyncChanges,
    AsyncDatabase,
    AsyncJoinedTransaction,
    AsyncMembership,
    AsyncScan,
    AsyncSnapshot,
    AsyncSubscription,
    AsyncTransaction,
)
from tidelock.aio.twins import Opening, Twin, in_thread
from tidelock.client import (
    BatchStream,
    Changes,
    CommitResult,
    Database,
    InsertResult,
    JoinedTransaction,
    Scan,
    Snapshot,
    Subscription,
    Transaction,
)
from tidelock.client.membership import Membership
from tidelock.wire.members import MembersAnswer

#: Public names of the synchronous classes that are not for programs: they join its own modules together.
_HOOKS: Final = {"stream", "collect", "renew", "begin_first", "after_fork", "at_end", "send_create"}
#: Names that the protocol of async iterators asks for, and an attribute that has to be awaited.
_OWN: Final = {"aclose", "schema"}
PAIRS: Final[list[tuple[type, type, set[str]]]] = [
    (Database, AsyncDatabase, set()),
    (Transaction, AsyncTransaction, set()),
    (JoinedTransaction, AsyncJoinedTransaction, set()),
    (Snapshot, AsyncSnapshot, set()),
    (Scan, AsyncScan, {"reader", "table", "columns", "where", "params"}),  # the arguments, as they were given
    (Changes, AsyncChanges, {"stream"}),
    (Subscription, AsyncSubscription, set()),
    (Membership, AsyncMembership, set()),
    (BatchStream, AsyncBatchStream, {"close"}),  # here `aclose`
]


def names(kind: object) -> set[str]:
    """Return the public names of a class or an object."""
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(function: Any) -> list[tuple[str, Any, Any]]:
    """Return name, kind and default of each argument, without `self`."""
    found = list(inspect.signature(function).parameters.values())
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


def differences(sync: type, twin: type, left_out: set[str]) -> Iterator[str]:
    """Yield what a twin lacks, or has differently."""
    there = names(sync) - _HOOKS - left_out
    yield from (f"{name} is missing" for name in there - names(twin))
    for name in there & names(twin):
        ours, theirs = getattr(sync, name), getattr(twin, name)
        if isinstance(ours, property) or isinstance(theirs, property):
            if type(ours) is not type(theirs):
                yield f"{name} is a property of one only"
            continue
        if arguments(ours) != arguments(theirs):
            yield f"{name} has other arguments"
        made_of = inspect.unwrap(theirs)
        if made_of is not theirs and made_of is not ours:
            yield f"{name} is made of {made_of.__qualname__}"


@pytest.mark.parametrize(("sync", "twin", "left_out"), PAIRS)
def test_each_method_has_a_twin_with_the_same_arguments(sync: type, twin: type, left_out: set[str]) -> None:
    """A method that is added to the synchronous client fails this until it has a twin with await."""
    assert sorted(differences(sync, twin, left_out)) == []


class _Grown(Membership):
    """A synchronous class that has a new method, and a new argument of an old one."""

    def rename(self, replica: str) -> None:
        """Do nothing."""

    def remove(self, replica: str, *, why: str = "") -> MembersAnswer:
        """Do nothing."""
        raise NotImplementedError(replica, why)


class _Swapped(AsyncMembership):
    """A twin whose method runs another one of the same arguments."""

    strike = in_thread(Membership.status_of)  # type: ignore[arg-type]


def test_a_missing_and_a_differing_method_are_found() -> None:
    """The comparison sees a method without a twin, other arguments, and the wrong method behind a name."""
    assert sorted(differences(_Grown, AsyncMembership, set())) == [
        "remove has other arguments",
        "remove is made of Membership.remove",
        "rename is missing",
    ]
    assert list(differences(Membership, _Swapped, set())) == ["strike is made of Membership.status_of"]


@pytest.mark.parametrize("name", ["connect", "join"])
def test_connect_and_join_take_all_that_their_twins_take(name: str) -> None:
    """The same arguments with the same defaults come first, then the limits of the threads."""
    theirs = arguments(getattr(aio, name))
    assert theirs[:-2] == arguments(getattr(client, name))
    assert [one[0] for one in theirs[-2:]] == ["threads_max", "close_timeout_s"]


async def test_objects_have_the_attributes_of_their_twins(fake_cluster: FakeCluster) -> None:
    """Attributes that only objects have, such as the CSN of a snapshot, are those of the twin as well."""
    agent = fake_cluster["r1"]
    async with (
        aio.connect(agent.url) as db,
        db.snapshot() as snap,
        db.begin() as tx,
        db.subscribe("t") as following,
    ):
        joined = db.join(token_of(agent.begin()))
        changes = db.changes("t", 1)
        objects: list[Twin[Any]] = [db, snap, tx, joined, changes, following]
        for one in objects:
            twin = one._twin
            assert names(one) == names(twin) - _HOOKS
            for name in vars(twin).keys() & names(twin):
                assert getattr(one, name) == getattr(twin, name)
        stream = db.scan("t").to_batches()
        assert names(stream) == {"aclose", "read_all", "schema"}
        assert (await stream.schema()).names == ["k"]
        await stream.aclose()
        assert repr(snap) == f"<AsyncSnapshot of <Snapshot {snap.csn}>>"


async def test_types_are_known_to_a_checker(fake_cluster: FakeCluster) -> None:
    """The type checker, which reads this test as well, knows arguments and results of the methods."""
    async with await aio.connect(fake_cluster["r1"].url) as db:
        assert_type(await db.insert("t", pa.table({"k": [1]}), wait="home"), CommitResult)
        async with assert_type(db.begin(min_csn=1), Opening[AsyncTransaction]) as tx:
            assert_type(await tx.insert("t", pa.table({"k": [1]})), InsertResult)
        assert_type(db.scan("t", where="k > ?", params=[1]), AsyncScan)
        async with db.snapshot() as snap:
            assert_type(snap, AsyncSnapshot)
            assert_type(await snap.scan("t").count(), int)
