"""The service for jobs that write through the file system, with a token of a transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import dataclass

from tidelock.csnlog.core.ids import TableName
from tidelock.csnlog.core.model import MemberState
from tidelock.replica_agent.config.states import AgentAction, Condition
from tidelock.replica_agent.services.finding import find_with_sign_of_life
from tidelock.replica_agent.transactions.registry import Transactions
from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.transactions.transaction import Transaction
from tidelock.replica_agent.uploads.peer_uploads import PeerUploads
from tidelock.replica_agent.uploads.redirect import UploadRedirector
from tidelock.replica_agent.uploads.token_issuer import IssuedToken, TokenIssuer
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims
from tidelock.replica_agent.uploads.uploads import Sealed, Uploads, Waiting


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class UploadService:
    """Issues tokens, and receives the files that are written with them."""

    condition: Condition
    transactions: Transactions
    passes: TokenIssuer
    uploads: Uploads
    spread: UploadRedirector
    foreign: PeerUploads

    @property
    def member(self) -> MemberState:
        """The addresses of this replica."""
        return self.passes.member

    def find_with_sign_of_life(self, tid: str, *, shown: bool) -> Transaction:
        """Return a transaction; see :func:`~.finding.find_with_sign_of_life`."""
        return find_with_sign_of_life(self.transactions, tid, shown=shown)

    # -- tokens ----------------------------------------------------------------------------------------------

    def give_token(
        self,
        tx: Transaction,
        rights: Collection[str],
        tables: Collection[TableName] | None,
        ttl_s: float | None,
    ) -> IssuedToken:
        """Return a token for an open transaction; errors as :meth:`TokenIssuer.give`."""
        return self.passes.give(tx, rights, tables, ttl_s)

    def admit_to(self, token: str, tid: str, right: Right | None) -> TokenClaims:
        """Return the claims of a token that a request about a transaction has; see `TokenIssuer.admit_to`."""
        return self.passes.admit_to(token, tid, right)

    def admit(self, token: str) -> tuple[TokenClaims, Transaction]:
        """Return a token's claims and its transaction, which accepts files now; see `TokenIssuer.admit`."""
        found = self.passes.admit(token)
        self.condition.require(AgentAction.INSERT)
        return found

    # -- the folder of a table -------------------------------------------------------------------------------

    def admit_seal(self) -> None:
        """Raise UnavailableError unless files of this home's transactions are accepted now."""
        self.condition.require(AgentAction.INSERT)

    async def seal(
        self, tx: Transaction, table: TableName, job: str | None, places: Iterable[StagingPath]
    ) -> Sealed:
        """Seal the files of a table; with ``job`` exactly its files at these paths count."""
        if job is None:
            return await self.uploads.seal(tx, table)
        return await self.uploads.settle(tx, table, job, places)

    def area(self, tx: Transaction, table: TableName) -> StagingArea:
        """Return the folder of a table; errors as :meth:`Uploads.of`."""
        return self.uploads.of(tx, table).area

    async def location(
        self, tx: Transaction, table: TableName, place: StagingPath, *, overwrite: bool
    ) -> str | None:
        """Check that a file may be created, and return the URL to send it to; None: this replica receives it.

        Raises:
            BadRequestError, TooLargeError: As :meth:`Uploads.upload`.
        """
        self.area(tx, table).check_create(place, overwrite=overwrite)
        self.uploads.quota.require_file(tx)
        return await self.spread.location(tx, table, place, overwrite=overwrite)

    async def upload(
        self,
        tx: Transaction,
        table: TableName,
        place: StagingPath,
        content: AsyncIterator[bytes],
        *,
        overwrite: bool,
    ) -> None:
        """Receive a file; see :meth:`Uploads.upload`."""
        await self.uploads.upload(tx, table, place, content, overwrite=overwrite)

    async def mark(self, tx: Transaction, table: TableName, place: StagingPath, waiting: Waiting) -> None:
        """Receive the mark of a job; see :meth:`Uploads.mark`."""
        await self.uploads.mark(tx, table, place, waiting)

    async def rename(
        self, tx: Transaction, table: TableName, source: StagingPath, target: StagingPath
    ) -> bool:
        """Move a file or a folder; see :meth:`Uploads.rename`."""
        return await self.uploads.rename(tx, table, source, target)

    async def delete(
        self, tx: Transaction, table: TableName, place: StagingPath, *, recursive: bool, waiting: Waiting
    ) -> bool:
        """Delete staged files, or rows of the table; see :meth:`Uploads.delete`."""
        return await self.uploads.delete(tx, table, place, recursive=recursive, waiting=waiting)

    async def take(self, grant: str, content: AsyncIterator[bytes]) -> None:
        """Receive a file for a transaction of another home; see :meth:`PeerUploads.take`."""
        self.condition.require(AgentAction.ACK)
        await self.foreign.take(grant, content)
