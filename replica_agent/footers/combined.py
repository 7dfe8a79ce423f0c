"""One Parquet file out of many small ones: the data of each as it is, and a footer for all. Pure.

The file is a function of the bytes of its parts and of their order, so every replica serves the same one
(docs/adr/0044-small-parts-are-listed-as-one-file.md). Its length depends on their lengths alone: a listing
knows it without reading a part. The bytes between the data and the footer are zeros, which no reader asks
for.

    data of part 1 | data of part 2 | ... | zeros | footer | its length | "PAR1"

A page index has positions among the data, which stay as they are: files with one are refused.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Final

import msgspec

from tidelock.replica_agent.footers.float_hints import is_marked
from tidelock.replica_agent.footers.pieces import Footer
from tidelock.replica_agent.footers.thrift import TAIL_BYTES

#: Most parts in one file, and most column chunks. Each task that reads a piece of a file parses the whole
#: footer, so more of them would cost more than they save.
PARTS_MAX: Final = 64
_CHUNKS_MAX: Final = 1024
#: Room for numbers that take more bytes than before, as a share of the parts' bytes. A column chunk has at
#: most seven positions, which grow by three bytes each in a file of less than 64 MiB, and takes a hundred
#: bytes or more: page header, values, footer.
_ROOM_SHARE: Final = 4


class CombinedFooter(msgspec.Struct, frozen=True):
    """The layout of a combined file.

    Attributes:
        starts: Where the data of each part begins, then where that of the last one ends.
        end: The last bytes of the file: its footer, the footer's length, and the mark.
        length: Bytes of the file.
        pages: What follows the data: pages of columns that the parts lack.
    """

    starts: tuple[int, ...]
    end: bytes
    length: int
    pages: bytes = b""

    @property
    def kib(self) -> int:
        """The memory that it takes, in KiB."""
        return (len(self.end) + len(self.pages)) // 1024 + 1


def parts_max(columns: int) -> int:
    """Return the most parts in a combined file of a table; fewer than two: it has no such files.

    Args:
        columns: Columns that a file of the table has: of an array, a struct or a map all those inside.
    """
    return min(PARTS_MAX, _CHUNKS_MAX // columns)


def length_of(parts_bytes: int) -> int:
    """Return the length of a combined file whose parts have so many bytes together."""
    return parts_bytes + parts_bytes // _ROOM_SHARE


def combine(parts: Sequence[tuple[int, bytes]]) -> CombinedFooter:
    """Return the layout of the file that these parts make.

    Args:
        parts: Of each its length, and its footer, without the last eight bytes of the file.

    Raises:
        ValueError: A footer cannot be read, the files differ in more than their row groups, or have a page
            index.
    """
    sizes = [length - len(footer) - TAIL_BYTES for length, footer in parts]
    starts = (0, *itertools.accumulate(sizes))
    found = [Footer.read(footer) for _, footer in parts]
    first = found[0]
    if not is_marked(parts[0][1]):
        raise ValueError("only parts whose writer has marked their hints about floats as right are combined")
    if any((one.head, one.tail) != (first.head, first.tail) for one in found):
        raise ValueError("the parts differ in their schema, their writer or their marks")
    if any(group.has_index for one in found for group in one.groups):
        raise ValueError("a part has a page index")
    groups = [
        group.moved(one.data, operator.methodcaller("moved", start))
        for one, start in zip(found, starts, strict=False)
        for group in one.groups
    ]
    end = first.composed(groups, sum(one.rows for one in found))
    length = length_of(sum(length for length, _ in parts))
    if starts[-1] + len(end) > length:
        raise ValueError(f"a footer of {len(end)} bytes has no room in the file")
    return CombinedFooter(starts, end, length)
