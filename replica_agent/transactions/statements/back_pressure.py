"""Holds inserts back from a partition that has too many parts: it delays them first, then refuses them.

Every part costs each query that scans it several requests. So a partition that gets small parts faster than
compaction merges them makes reads slow long before anything fails. Only the writer can change that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from tidelock.errors import TooManyPartsError
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.part_counts import PartCounts
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.transactions.transaction import StagedChanges

_OFF: Final = "compaction of this table is off (property compaction)"
_ON: Final = "compaction does not keep up"


@dataclass(slots=True, eq=False, repr=False)
class BackPressure:
    """Delays or refuses an insert before it adds a part to a partition."""

    settings: AgentSettings
    counts: PartCounts
    metrics: Metrics

    async def admit(self, staged: StagedChanges, schema: TableSchema, path: str, added: int = 0) -> None:
        """Return when a part may be added to a partition, at the latest after ``insert_delay_max_s``.

        Args:
            staged: The changes of the transaction; the parts that it has staged there count too.
            schema: The schema of the table.
            path: The partition.
            added: Those staged parts that this insert itself has made; they do not count.

        Raises:
            TooManyPartsError: The partition has ``parts_refuse_insert`` parts or more.
        """
        settings = self.settings
        found = self.counts.of(schema.id, path)
        if found + len(staged.memory) + len(staged.stored) < settings.parts_delay_insert:
            return  # without a scan over the parts of the transaction
        found += sum(part.table == schema.id and part.path == path for part in staged.parts) - added
        if found >= settings.parts_refuse_insert:
            self.metrics.compaction.inserts_refused.inc()
            raise _refusal(schema, path, found, settings.parts_refuse_insert)
        pause_s = delay_s(
            found, settings.parts_delay_insert, settings.parts_refuse_insert, settings.insert_delay_max_s
        )
        if pause_s:
            self.metrics.compaction.inserts_delayed.inc()
            await asyncio.sleep(pause_s)


def delay_s(found: int, delay_from: int, refuse_from: int, longest_s: float) -> float:
    """Return the delay of an insert for a number of parts: it grows linearly from 0 to ``longest_s``."""
    if found < delay_from:
        return 0.0
    return longest_s * (found - delay_from + 1) / (refuse_from - delay_from)


def _refusal(schema: TableSchema, path: str, found: int, limit: int) -> TooManyPartsError:
    where = f"partition {path} of table {schema.name}" if path else f"table {schema.name}"
    why = _OFF if schema.properties.get("compaction") == "off" else _ON
    return TooManyPartsError(
        f"{where} has {found} parts, and inserts are refused from parts_refuse_insert={limit} on: {why}; "
        f"insert larger batches, and have parts merged by `tidelock admin optimize {schema.name}`",
        table=schema.name,
        partition=path,
        found=found,
        limit=limit,
    )
