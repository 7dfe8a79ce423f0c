"""Parts that are cut: some row groups of a stored part, as they are, become a part of their own.

Nothing is decoded: the bytes of the row groups are copied, under a footer of their own
(:mod:`tidelock.replica_agent.footers.cutting`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.errors import CorruptError
from tidelock.replica_agent.footers.cutting import cut
from tidelock.replica_agent.footers.thrift import footer_in
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.replica_agent.storage.part_target import PartTarget
from tidelock.replica_agent.storage.part_writer import EncodedPart, PartMaker
from tidelock.replica_agent.tables.statistics import statistics_of
from tidelock.replication.verified_range import VerifiedRange


def cut_part(maker: PartMaker, data_dir: Path, source: PartRow, kept: Sequence[int]) -> EncodedPart:
    """Return the part that has only some row groups of another one.

    It blocks for as long as their bytes take to be read and written.

    Args:
        maker: The needs of the new part.
        data_dir: The data directory with the other one.
        source: The other one, which is whole here.
        kept: The numbers of the row groups, ascending.

    Raises:
        CorruptError: The bytes on the disk are not the written ones, or were found not to be.
        DiskFullError, UnavailableError: They could not be written.
    """
    part = maker.new_part()
    target = PartTarget(functools.partial(maker.open_file, part), maker.settings.inline_part_bytes_max)
    end = b""
    for piece in _pieces(data_dir, source, kept):
        target.write(piece)
        end = piece
    metadata = pq.read_metadata(pa.BufferReader(end))
    data, digest = target.finish(), target.digest
    return EncodedPart(
        part=part,
        path=source.path,
        rows=metadata.num_rows,
        length=digest.length,
        checksum=digest.checksum(),
        blocks=digest.blocks(),
        stats=statistics_of(metadata, maker.schema, metadata.schema.to_arrow_schema()),
        data=data,
        form=None,
    )


def _pieces(data_dir: Path, source: PartRow, kept: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes of the new part; the last piece is the end of the file, with its footer."""
    location = source.held
    if location is None:
        raise _corrupt(source, "its bytes were found damaged and have not been fetched again yet")
    try:
        with VerifiedRange(data_dir, location) as file:
            yield from cut(footer_in(file.read, source.length), kept, file.read)
    except CorruptError as error:
        raise _corrupt(source, error.message) from error
    except ValueError as error:
        raise _corrupt(source, str(error)) from error


def _corrupt(part: PartRow, problem: str) -> CorruptError:
    return CorruptError(
        f"part {part.part} of table {part.table} cannot be cut here: {problem}; use another replica",
        part=part.part,
        table=part.table,
    )
