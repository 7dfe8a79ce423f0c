"""The service for jobs that write through the file system, with a token of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelock.csnlog.core.ids import TableId
from tidelock.partition_paths import path_of
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.readers.catalog import parts_of_files
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replica_agent.uploads.peer_uploads import PeerUploads
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replica_agent.uploads.replacements import Replacements
from tidelock.replica_agent.uploads.token_issuer import TokenIssuer
from tidelock.replica_agent.uploads.tokens import TokenClaims
from tidelock.replica_agent.uploads.uploads import Uploads
from tidelock.wire.ids import TableName
from tidelock.wire.statements import ChangeResult, InsertResult, Replacement, RowChanges

#: The name of a file that stands for all that could be read of a table, and cannot be read.
ONE_FILE: Final = "only-written.parquet"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UploadService:
    """Issues tokens, and receives the files that are written with them."""

    condition: Condition
    transactions: Transactions
    tokens: TokenIssuer
    uploads: Uploads
    replacements: Replacements
    redirector: UploadRedirector
    peer_uploads: PeerUploads

    # -- tokens ----------------------------------------------------------------------------------------------

    def admit(self, token: str) -> tuple[TokenClaims, Transaction]:
        """Return a token's claims and its transaction, which accepts files now; see `TokenIssuer.admit`."""
        found = self.tokens.admit(token)
        self.condition.require(AgentAction.INSERT)
        return found

    def table(self, tx: Transaction, name: TableName) -> TableId:
        """Return the table that has a name for a transaction; UnknownTableError if none has it."""
        at = tx.begin_statement(self.uploads.waiters.reached)
        return self.uploads.tables.seen(at, tx.staged.definitions).find(name)

    # -- the folder of a table -------------------------------------------------------------------------------

    def admit_seal(self) -> None:
        """Raise UnavailableError unless files of this home's transactions are accepted now."""
        self.condition.require(AgentAction.INSERT)

    async def seal(
        self, tx: Transaction, table: TableId, job: str | None, places: Iterable[StagingPath]
    ) -> InsertResult:
        """Seal the files of a table; with ``job`` exactly its files at these paths count."""
        if job is None:
            return await self.uploads.seal(tx, table)
        return await self.uploads.settle(tx, table, job, places)

    async def replace(self, tx: Transaction, name: TableName, files: Sequence[str]) -> Replacement:
        """Take the parts of files out of a table, for a job that changes their rows; a sign of life.

        Raises:
            BadRequestError: The snapshot of the transaction does not show a file.
            Others as :meth:`Replacements.begin`.
        """
        self.condition.require(AgentAction.INSERT)
        with tx.ending.failing(f"the change of {name}", spared=()):
            table, csn = self.table(tx, name), tx.tid.snapshot
            data_dir = self.uploads.files.data_dir
            parts = await asyncio.to_thread(parts_of_files, data_dir, table, csn, files)
            taken = await self.replacements.begin(tx, name, parts)
        self.transactions.touch(tx)
        return taken

    async def seal_change(self, tx: Transaction, table: TableId, changes: RowChanges) -> ChangeResult:
        """Seal the job that replaces the rows of taken parts; see :meth:`Uploads.seal_change`."""
        return await self.uploads.seal_change(tx, table, changes)

    async def confirm(self, tx: Transaction, table: TableId) -> bool:
        """Let the sealed jobs of a table count; see :meth:`Uploads.confirm`."""
        return await self.uploads.confirm(tx, table)

    def one_file(self, tx: Transaction, table: TableId) -> StagingPath:
        """Return the place of the file that the folder of a table shows to engines that look at it."""
        at = tx.begin_statement(self.uploads.waiters.reached)
        _, schema = self.uploads.tables.seen(at, tx.staged.definitions).schema(table)
        partition = path_of({column.name: None for column in schema.partition_columns})
        return (*filter(None, partition.split("/")), ONE_FILE)

    def area(self, tx: Transaction, table: TableId) -> StagingArea:
        """Return the folder of a table; errors as :meth:`Uploads.of`."""
        return self.uploads.of(tx, table).area

    async def location(
        self, tx: Transaction, table: TableId, place: StagingPath, *, overwrite: bool
    ) -> str | None:
        """Check that a file may be created, and return the URL to send it to; None: this replica receives it.

        Raises:
            BadRequestError, TooLargeError: As :meth:`Uploads.upload`.
        """
        self.area(tx, table).check_create(place, overwrite=overwrite)
        self.uploads.quota.require_file(tx)
        return await self.redirector.location(tx, table, place, overwrite=overwrite)

    async def take(self, grant: str, content: AsyncIterator[bytes]) -> None:
        """Receive a file for a transaction of another home; see :meth:`PeerUploads.take`."""
        self.condition.require(AgentAction.ACK)
        await self.peer_uploads.take(grant, content)
