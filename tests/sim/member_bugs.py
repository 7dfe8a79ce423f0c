"""Planted bugs of clones, of members that come and go, and of a ZooKeeper that was set back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import msgspec
from msgspec.structs import replace

from tidelock.csnlog.core.ids import ReplicaId
from tidelock.csnlog.core.imprint import Imprint
from tidelock.csnlog.core.roster import raised
from tidelock.csnlog.core.store import Op
from tidelock.errors import MembershipError
from tidelock.replica_agent.cloning import manifest
from tidelock.replica_agent.replicas.own_phase import OwnPhase
from tidelock.replication.core import membership_rules
from tidelock.replication.core.membership_rules import MembersReading, NotYet
from tidelock.replication.core.phase import PhaseReport


@contextmanager
def merge_a_manifest() -> Iterator[None]:
    """The rows of a manifest are added to those of the catalog, and none of these goes."""

    def merge(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
        for name in manifest._tables(db):
            if name in {"files", "undo"}:
                continue
            columns = manifest._columns(source, name)
            named, marks = ", ".join(columns), ", ".join("?" * len(columns))
            rows = source.execute(f'SELECT {named} FROM "{name}"')
            db.executemany(f'INSERT OR REPLACE INTO "{name}" ({named}) VALUES ({marks})', rows)

    with mock.patch.object(manifest, "_replace_rows", merge):
        yield


@contextmanager
def take_a_clone_that_fetches_for_a_whole_one() -> Iterator[None]:
    """A replica says that it follows while it still fetches the parts of its clone."""
    look = OwnPhase.look

    def blind(own: OwnPhase) -> tuple[PhaseReport, int]:
        fetches, own.condition.fetches = own.condition.fetches, False
        try:
            return look(own)
        finally:
            own.condition.fetches = fetches

    with mock.patch.object(OwnPhase, "look", blind):
        yield


@contextmanager
def leave_before_others_have_all() -> Iterator[None]:
    """A replica leaves although those that stay have not applied what was committed with its copy."""
    with mock.patch.object(membership_rules, "_require_all", return_value=None):
        yield


@contextmanager
def lower_copies_when_a_replica_leaves() -> Iterator[None]:
    """A replica leaves although too few are well without it: a commit needs fewer copies from then on."""
    taken_out = membership_rules._taken_out

    def lower(
        seen: MembersReading, replica: ReplicaId, state: str, by: ReplicaId, nonce: str
    ) -> tuple[Op, ...] | NotYet | None:
        try:
            return taken_out(seen, replica, state, by, nonce)
        except MembershipError as error:
            if not error.details.get("have"):
                raise
            roster = msgspec.structs.replace(seen.roster, copies=int(str(error.details["have"])))
        ops = taken_out(replace(seen, roster=roster), replica, state, by, nonce)
        return (*ops[:-1], raised(seen.node, roster)) if isinstance(ops, tuple) else ops

    with mock.patch.object(membership_rules, "_taken_out", lower):
        yield


@contextmanager
def compare_no_stamp() -> Iterator[None]:
    """A record that a replica has taken is never told from another one at its CSN."""
    with mock.patch.object(Imprint, "differs", return_value=False):
        yield


MEMBER_BUGS: Final = (
    merge_a_manifest,
    take_a_clone_that_fetches_for_a_whole_one,
    leave_before_others_have_all,
    lower_copies_when_a_replica_leaves,
    compare_no_stamp,
)
