"""Proposals: what a transaction puts into the log, built when every part has its copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.codec import encode_definition, encode_entries, encode_skip, encode_tags
from tidelock.csnlog.core.ids import ReplicaId, TableId
from tidelock.csnlog.core.model import (
    AddPart,
    DefineTable,
    Entry,
    Manifest,
    RemovePart,
    SharePart,
    SkipPart,
    SkipState,
    TidRecord,
)
from tidelock.csnlog.core.store import Check, Create, SetData
from tidelock.csnlog.log import Proposal
from tidelock.errors import TidelockError, TooLargeError, UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.pack_writer import PartNumbers, StagedBytes
from tidelock.replica_agent.transactions.ending.copies import CopyMaker
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.statements.removals import Removals
from tidelock.replica_agent.transactions.transaction import StagedTag, Transaction
from tidelock.replication.core.digest import checksum
from tidelock.replication.core.model import CountedCopies, PartMeta

_log = structlog.get_logger("commit")

#: Room for everything else in a record, and in its multi.
_FRAME_BYTES = 8 << 10


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ProposalBuilder:
    """Builds the proposals of this home's transactions."""

    replica: ReplicaId
    settings: AgentSettings
    transactions: Transactions
    numbers: PartNumbers
    copies: CopyMaker
    removals: Removals

    @property
    def _written_bytes_max(self) -> int:
        """Bytes of the entries that a record holds although it has a manifest.

        They are those whose content the same multi writes into znodes. A manifest can be lost: then a table
        would be in ZooKeeper, and in no catalog.
        """
        return min(self.settings.record_bytes_max, self.settings.multi_bytes_max // 2) - _FRAME_BYTES

    async def build(self, tx: Transaction, timeout_s: float) -> Proposal:
        """Make the copies of every part, and return what goes into the log; this writes nothing to the log.

        Raises:
            TidelockError: The copies could not be made, or a compaction met a conflict.
            TooLargeError: Definitions of tables are larger than a record.
            UnavailableError: Also any unforeseen error: the transaction is certainly not committed.
        """
        try:
            return await self._build(tx, timeout_s)
        except TidelockError:
            raise
        except Exception as error:
            _log.exception("not_proposed", tid=str(tx.tid))
            raise UnavailableError(f"unforeseen: {error!r}; see the agent's log") from error

    async def _build(self, tx: Transaction, timeout_s: float) -> Proposal:
        staged = tx.staged
        tag = () if staged.tag is None else (staged.tag.entry,)
        written: tuple[Entry, ...] = (*staged.definitions, *_declared(staged.skip), *tag)
        changes: tuple[Entry, ...] = (
            *(RemovePart(table, part) for part, table in staged.removed.items()),
            *(_adding(part) for part in staged.parts),
        )
        if (found := len(encode_entries(written))) > (limit := self._written_bytes_max):
            raise TooLargeError(
                f"the definitions of tables in {tx.tid} take {found} bytes; a record has room for {limit} "
                f"(record_bytes_max, half of multi_bytes_max): use fewer columns, or shorter names",
                limit=limit,
                found=found,
            )
        manifest = self._stage_manifest(tx, changes)
        counted = await self._make_copies(tx, timeout_s)
        if not tx.data_change:  # only now, so that it blocks no transaction while it works
            await self.removals.replace_parts(tx)
        record = TidRecord(
            tid=str(tx.tid),
            entries=written if manifest else (*written, *changes),
            manifest=manifest,
            holders=(self.replica,) if counted is None else counted.holders,
            label=tx.label,
            data_change=tx.data_change,
            meta=tx.meta,
            batch=tx.batch,
            progress=tx.progress,
        )
        ddl = (
            *_defining(staged.definitions),
            *(Create(tree.skip(item.part), encode_skip(SkipState(item))) for item in _declared(staged.skip)),
            *_tagging(staged.tag),
        )
        version = None if counted is None else counted.version
        return Proposal(record, dict(staged.tables), ddl, tx.label, roster=version)

    async def count_again(self, tx: Transaction, proposal: Proposal, timeout_s: float) -> Proposal:
        """Return a proposal whose copies are counted after the change that its commit has met.

        Raises:
            NotEnoughReplicasError: There are not enough copies, and no byte of them has arrived for
                ``timeout_s``.
        """
        assert proposal.roster is not None, "a commit that names no copies was refused because of them"
        counted = await self.copies.count_again(tx.tid, proposal.roster, timeout_s)
        record = msgspec.structs.replace(proposal.record, holders=counted.holders)
        return msgspec.structs.replace(proposal, record=record, roster=counted.version)

    async def _make_copies(self, tx: Transaction, timeout_s: float) -> CountedCopies | None:
        """Make the copies of every part; return None for a transaction without parts."""
        parts = tuple(tx.staged.parts)
        if not parts:
            return None
        counted = await self.copies.make(tx.tid, parts, tuple(tx.staged.memory.values()), timeout_s)
        tx.staged.stored.update({part.part: part for part in parts})
        self.transactions.forget_memory(tx)
        return counted

    def _stage_manifest(self, tx: Transaction, entries: tuple[Entry, ...]) -> Manifest | None:
        """Stage removals and additions that are too large for a record as a part of their own."""
        data = encode_entries(entries)
        if len(data) <= self.settings.inline_entries_bytes_max:
            return None
        part = self.numbers.next()
        meta = PartMeta(
            part=part,
            table=TableId(""),
            path="",
            rows=0,
            length=len(data),
            checksum=checksum(data),
            stats=None,
            kind="manifest",
        )
        self.transactions.add(tx, StagedBytes(meta, data, tx.tid))
        return Manifest(part, len(data), meta.checksum, len(entries))


def ordered(proposal: Proposal, version: int) -> Proposal:
    """Return a proposal with definitions that checks a version of ``tables``, where they are right."""
    return msgspec.structs.replace(proposal, ddl=(SetData(tree.TABLES, b"", version), *proposal.ddl))


def _defining(items: Sequence[DefineTable]) -> Iterator[Create | SetData]:
    """Yield the writes of definitions: a create each, or a set of the previous definition (rule tables)."""
    for item in items:
        path, data = tree.table(item.table), encode_definition(item.definition)
        yield SetData(path, data, item.version - 1) if item.version else Create(path, data)


def _tagging(tag: StagedTag | None) -> Iterator[Check | SetData]:
    """Yield the checks and writes of a change of tags; those who raise the horizon check ``pins``."""
    if tag is not None:
        if tag.horizon is not None:
            yield Check(tree.HORIZON, tag.horizon)
        yield SetData(tree.TAGS, encode_tags(tag.tags), tag.version)
        yield SetData(tree.PINS)


def _declared(skip: SkipPart | None) -> tuple[SkipPart, ...]:
    return () if skip is None else (skip,)


def _adding(part: PartMeta) -> AddPart:
    values = (part.table, part.part, part.path, part.rows, part.length, part.checksum)
    if part.source is None and part.columns_csn is None:
        return AddPart(*values)
    return SharePart(*values, part.origin, part.columns_csn)
