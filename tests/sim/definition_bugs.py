"""Planted bugs of definitions: of tables that are created, renamed, replaced and dropped."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from msgspec.structs import replace

from tidelock.csnlog.core.model import ChangeTable, DefineTable
from tidelock.csnlog.log import Proposal
from tidelock.replica_agent.storage import catalog_writes
from tidelock.replica_agent.transactions.ending import proposals, settlement


@contextmanager
def define_at_any_time() -> Iterator[None]:
    """A definition is committed whatever was defined since its home has decided it."""
    ordered = proposals.ordered

    def any_time(proposal: Proposal, _: int) -> Proposal:
        return ordered(proposal, -1)

    with mock.patch.object(settlement, "ordered", any_time):
        yield


@contextmanager
def insert_whatever_was_defined() -> Iterator[None]:
    """A commit does not check the definitions of the tables for which its parts were made."""
    build = proposals.ProposalBuilder._build

    async def unchecked(self: proposals.ProposalBuilder, *args: Any) -> Proposal:
        return replace(await build(self, *args), tables={})

    with mock.patch.object(proposals.ProposalBuilder, "_build", unchecked):
        yield


@contextmanager
def drop_a_table_and_not_its_parts() -> Iterator[None]:
    """The parts of a dropped table stay in it."""
    define = catalog_writes._define

    def keep(db: sqlite3.Connection, entry: DefineTable, tid: str, *args: Any) -> None:
        define(db, entry, tid, *args)
        if isinstance(entry, ChangeTable) and entry.drops:
            sql = (
                "UPDATE parts SET removal_tid = NULL, removal_csn = NULL "
                "WHERE table_name = ? AND removal_tid = ?"
            )
            db.execute(sql, (entry.table, tid))

    with mock.patch.object(catalog_writes, "_define", keep):
        yield


DEFINITION_BUGS: Final = (
    define_at_any_time,
    insert_whatever_was_defined,
    drop_a_table_and_not_its_parts,
)
