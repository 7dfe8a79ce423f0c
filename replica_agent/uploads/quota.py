"""Limits of what one transaction may stage, through the file system and otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from tidelock.errors import TooLargeError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.transactions.transaction import Transaction


@dataclass(slots=True, eq=False, repr=False)
class UploadQuota:
    """Checks by the settings of this agent. Parts that the transaction already has count as well."""

    settings: AgentSettings

    def require_file(self, tx: Transaction) -> None:
        """Raise TooLargeError unless the transaction may stage one file more."""
        limit = self.settings.staged_files_max
        found = len(tx.staged.stored) + sum(len(writes.files) for writes in tx.staged.writes.values())
        if found >= limit:
            raise TooLargeError(
                f"{tx.tid} has {found} files and parts, the limit is staged_files_max={limit}: write fewer, "
                "larger files (repartition by the partition columns), or in several transactions",
                limit=limit,
                found=found,
            )

    def room(self, tx: Transaction) -> int:
        """Return how many more bytes the transaction may stage; below 0 when it has too many."""
        stored = sum(meta.length for meta in tx.staged.stored.values())
        return self.settings.staged_bytes_max - stored - sum(w.length for w in tx.staged.writes.values())

    def require_bytes(self, tx: Transaction, length: int) -> None:
        """Raise TooLargeError if a file, or all that is staged together, has grown too large.

        Args:
            tx: Its bytes include those of the file.
            length: Bytes of the file so far.
        """
        limit = self.settings.insert_bytes_max
        if length > limit:
            raise TooLargeError(
                f"a file has more than {limit} bytes (insert_bytes_max): write smaller ones "
                "(spark.sql.files.maxRecordsPerFile)",
                limit=limit,
                found=length,
            )
        if self.room(tx) < 0:
            limit = self.settings.staged_bytes_max
            raise TooLargeError(
                f"{tx.tid} would have more than {limit} bytes staged (staged_bytes_max): write in several "
                "transactions",
                limit=limit,
            )
