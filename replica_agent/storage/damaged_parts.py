"""Damaged parts that a statement meets: the agent fetches them again, and the client is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelock.csnlog.core.ids import PartId, ReplicaId
from tidelock.errors import CorruptError, PartDamagedError
from tidelock.replica_agent.storage.catalog_reads import CatalogReader, PartRow


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class DamagedParts:
    """Tells damage that this replica mends by itself from damage that it does not.

    Attributes:
        reader: The catalog.
        report: Called with a part whose bytes are wrong here, and with the finding; it is fetched again.
    """

    replica: ReplicaId
    reader: CatalogReader
    report: Callable[[PartId, str], None]

    def met(self, error: BaseException) -> PartDamagedError | None:
        """Return the error for the client of a statement that ended in ``error``.

        None: that error itself, since it names no part of the catalog that could be fetched again.
        """
        if not isinstance(error, CorruptError) or (part := error.details.get("part")) is None:
            return None
        self.report(part, error.message)
        row = self.reader.part(part)
        if row is None:
            return None
        return part_damaged(self.replica, row, error.message)


def part_damaged(replica: ReplicaId, part: PartRow, finding: str) -> PartDamagedError:
    """Return the error for a client that needs a part which is damaged at a replica."""
    return PartDamagedError(
        f"replica {replica} should have part {part.part} whole, and it is damaged there. It is fetched again "
        f"from another replica: begin the transaction again, or read at another replica ({finding})",
        part=part.part,
        table=part.table,
        replica=replica,
    )
