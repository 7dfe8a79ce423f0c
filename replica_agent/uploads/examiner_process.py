"""The examiner process: checks uploaded Parquet files one after the other.

pyarrow ends its process (SIGABRT, SIGSEGV) over some damaged footers, where it cannot raise an error. So no
file of a client is opened in the agent's process.
"""

from __future__ import annotations

from tidelock.replica_agent.config import lean_start

if __name__ == "__main__":  # not in a process that imports this module
    lean_start.leave_out_packages()

import signal
from pathlib import Path
from typing import NoReturn

import msgspec
import pyarrow as pa

from tidelock.errors import TidelockError, TooLargeError
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.uploads.examination import (
    Answer,
    ExaminationRequest,
    ExaminerConfig,
    FileFacts,
    FileRefused,
    FileSource,
)
from tidelock.replica_agent.uploads.parquet_files import examine
from tidelock.replica_agent.workers import child
from tidelock.replica_agent.workers.frames import pack
from tidelock.replica_agent.workers.limits import limit_memory
from tidelock.replication.core.model import Location
from tidelock.replication.verified_range import VerifiedRange
from tidelock.wire.failure import Failure


def main() -> NoReturn:
    """Answer requests until the agent has ended."""
    given = child.begin(ignored=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    config = msgspec.json.decode(given.config, type=ExaminerConfig)
    limit_memory(config.memory_bytes)
    given.connection.sendall(child.STARTED)
    for frame in child.requests(given.connection):
        request = msgspec.json.decode(frame, type=ExaminationRequest)
        schema = TableSchema.from_definition(request.table, request.definition)
        for file in request.files:
            answer = _examine(file, schema, config)
            given.connection.sendall(pack(msgspec.json.encode(answer)))
            if isinstance(answer, FileRefused):
                break
    raise AssertionError("the requests end with this process")


def _examine(file: FileSource, schema: TableSchema, config: ExaminerConfig) -> Answer:
    try:
        rows, stats = examine(_open(file, Path(config.data_dir)), schema)
    except TidelockError as error:
        return FileRefused(Failure(**error.to_wire()))
    except MemoryError:
        refusal = TooLargeError(
            f"the check of a file for table {schema.name} needs more than {config.memory_bytes} bytes "
            "(upload_check_memory_bytes); write smaller row groups, or fewer columns",
            limit=config.memory_bytes,
        )
        return FileRefused(Failure(**refusal.to_wire()))
    return FileFacts(rows, stats)


def _open(file: FileSource, data_dir: Path) -> Path | pa.BufferReader:
    """Return the source of a file: a small one that was fetched is stored in a pack."""
    path = data_dir / file.file
    if (file.offset, file.length) == (0, path.stat().st_size):
        return path
    with VerifiedRange(data_dir, Location(file.file, file.offset, file.length, file.blocks)) as part:
        return pa.BufferReader(part.read(0, file.length))


if __name__ == "__main__":
    main()
