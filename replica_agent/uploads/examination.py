"""The messages between an agent and its examiner process, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from tidelock.csnlog.core.ids import TableId
from tidelock.replica_agent.tables.statistics import Statistics
from tidelock.wire.failure import Failure


class ExaminerConfig(msgspec.Struct, frozen=True):
    """The configuration of the process: the data directory, and how much memory a check may use."""

    data_dir: str
    memory_bytes: int


class FileSource(msgspec.Struct, frozen=True):
    """Where a file is, below the data directory; a small one may be a range of a pack."""

    file: str
    offset: int
    length: int
    blocks: bytes


class ExaminationRequest(msgspec.Struct, frozen=True):
    """Files of one table, by its definition. Each gets an answer, up to the first one that is refused."""

    table: TableId
    definition: dict[str, Any]
    files: list[FileSource]


class FileFacts(msgspec.Struct, frozen=True, tag="facts"):
    """An accepted file."""

    rows: int
    stats: Statistics


class FileRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The error of a file that cannot be a part."""

    failure: Failure


Answer = FileFacts | FileRefused
