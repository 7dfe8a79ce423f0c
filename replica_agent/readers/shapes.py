"""Files that are shown with other columns than they were written with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.replica_agent.footers.combined import CombinedFooter
from tidelock.replica_agent.footers.evolving import evolve
from tidelock.replica_agent.footers.thrift import TAIL_BYTES
from tidelock.replica_agent.tables.layouts import Layout
from tidelock.replication.core import digest


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns as which the parts of one layout of a table are shown.

    Attributes:
        table: The table.
        version: The version of its definition that the reader sees.
        below: The CSN that bounds the layout.
        layout: How these parts are shown there.
        footer: The footer of a file with all columns of that version.
    """

    table: TableId
    version: int
    below: Csn
    layout: Layout = field(compare=False)
    footer: bytes = field(compare=False)

    def checksum(self, stored: str) -> str:
        """Return a name of the bytes of a file that is shown so, by that of the stored ones."""
        return digest.checksum(f"{stored} {self.version} {self.below}".encode())

    def show(self, stored: CombinedFooter, length: int) -> CombinedFooter:
        """Return another end of a file.

        Args:
            stored: The layout of the parts in it, with the footer that they have.
            length: The length that the file is to have.

        Raises:
            ValueError: The footer cannot be read, or has no room.
        """
        at = stored.starts[-1]
        pages, end = evolve(stored.end[:-TAIL_BYTES], self.footer, self.layout.columns, pages_at=at)
        if at + len(pages) + len(end) > length:
            raise ValueError(
                f"a footer of {len(end)} bytes has no room in the file, which has more row groups than a "
                "file with other columns may have"
            )
        return CombinedFooter(stored.starts, end, length, pages)
