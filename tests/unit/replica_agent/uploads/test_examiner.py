"""The examiner process: its answers, its limits, and what its death means for the file and the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.rows import settings
from tests.support.spark.hdfs_client import parquet
from tidelock.errors import SchemaMismatchError, TooLargeError, UnavailableError
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.uploads.examination import FileFacts
from tidelock.replica_agent.uploads.examiner import FileExaminer
from tidelock.replication.core.digest import RangeDigest
from tidelock.replication.core.model import Location

ARROW = pa.schema(
    [("number", pa.int64()), ("name", pa.string()), ("price", pa.decimal128(9, 2)), ("yes", pa.bool_())]
)
SCHEMA = TableSchema.from_request("t", ARROW)
ROWS = pa.table(
    {"number": [1, 1 << 62], "name": ["a", None], "price": [Decimal("1.50"), None], "yes": [True, False]},
    schema=ARROW,
)


def damaged(data: bytes) -> bytes:
    """Return a file whose footer names a codec that does not exist, by one flipped bit: pyarrow aborts."""
    codec = data.rindex(b"number") + len(b"number")
    assert data[codec] == 0x15, "a field of type i32 follows the name: the codec"
    return data[: codec + 1] + bytes([data[codec + 1] ^ 0x40]) + data[codec + 2 :]


GOOD = parquet(ROWS)
BAD = damaged(GOOD)


def make(folder: Path, **limits: Any) -> FileExaminer:
    """Return an examiner of files in a folder."""
    return FileExaminer(settings=settings(**limits), data_dir=folder)


@pytest.fixture
async def examiner(tmp_path: Path) -> AsyncIterator[FileExaminer]:
    """An examiner whose process ends with the test."""
    made = make(tmp_path)
    yield made
    await made.close()


def put(folder: Path, data: bytes, *, before: bytes = b"") -> Location:
    """Write a file, maybe as the end of a pack, and return its place."""
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    path.write_bytes(before + data)
    digest = RangeDigest()
    digest.update(data)
    return Location(path.name, len(before), len(data), digest.blocks())


async def test_files_are_accepted_with_their_statistics(examiner: FileExaminer, tmp_path: Path) -> None:
    """A file of its own and a range of a pack are the same; each has its answer, in their order."""
    empty = parquet(ROWS.slice(0, 0))
    places = [put(tmp_path, GOOD), put(tmp_path, GOOD, before=b"another part"), put(tmp_path, empty)]
    facts = await examiner.examine(SCHEMA, places)
    stats: dict[str, list[Any]] = {
        "number": [1, 1 << 62, 0],
        "name": ["a", "a", 1],
        "price": ["1.50", "1.50", 1],
        "yes": [False, True, 0],
    }
    assert facts[:2] == [FileFacts(2, stats)] * 2
    assert facts[2].rows == 0


async def test_a_refusal_names_the_file_and_the_process_goes_on(
    examiner: FileExaminer, tmp_path: Path
) -> None:
    """The error of a check arrives as it was raised; the next request has its own answers."""
    other = put(tmp_path, parquet(ROWS.drop_columns(["name"])))
    good = put(tmp_path, GOOD)
    with pytest.raises(SchemaMismatchError, match=r"column name for table default\.t .* is missing"):
        await examiner.examine(SCHEMA, [good, other, good])
    worker = examiner._worker
    assert [item.rows for item in await examiner.examine(SCHEMA, [good])] == [2]
    assert examiner._worker is worker


@pytest.mark.parametrize("data", [BAD, b"PAR1" + b"x" * 50 + b"PAR1", b"", GOOD[:-1]])
async def test_a_damaged_footer_is_refused(examiner: FileExaminer, tmp_path: Path, data: bytes) -> None:
    """A file that ends its reader is refused like any other damaged one; the next one gets a new process."""
    with pytest.raises(SchemaMismatchError, match=r"cannot be read as Parquet.*write it again"):
        await examiner.examine(SCHEMA, [put(tmp_path, GOOD), put(tmp_path, data)])
    assert [item.rows for item in await examiner.examine(SCHEMA, [put(tmp_path, GOOD)])] == [2]


async def test_the_damage_ends_a_process_that_reads_the_file(examiner: FileExaminer, tmp_path: Path) -> None:
    """The test's file is of the kind that this process is for: its message names the signal."""
    with pytest.raises(SchemaMismatchError, match="SIGABRT"):
        await examiner.examine(SCHEMA, [put(tmp_path, BAD)])


async def test_whatever_is_changed_in_a_footer_the_answer_is_a_check_or_a_refusal(
    examiner: FileExaminer, tmp_path: Path
) -> None:
    """Random bits of a footer: only a refusal reaches the caller, and the next file is checked."""
    chance = random.Random(13)
    footer = len(GOOD) - 8 - int.from_bytes(GOOD[-8:-4], "little")
    for _ in range(60):
        data = bytearray(GOOD)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(footer, len(GOOD) - 8)] ^= 1 << chance.randrange(8)
        with contextlib.suppress(SchemaMismatchError, TooLargeError):
            await examiner.examine(SCHEMA, [put(tmp_path, bytes(data))])
    assert [item.rows for item in await examiner.examine(SCHEMA, [put(tmp_path, GOOD)])] == [2]


async def test_a_process_that_was_killed_is_no_fault_of_the_file(
    examiner: FileExaminer, tmp_path: Path
) -> None:
    """Idle, it is started again without a word; in the middle of a check the client may try again."""
    places = [put(tmp_path, GOOD)]
    await examiner.examine(SCHEMA, places)
    assert examiner._worker is not None
    os.kill(examiner._worker.pid, signal.SIGSTOP)
    check = asyncio.create_task(examiner.examine(SCHEMA, places))
    await asyncio.sleep(0.05)
    os.kill(examiner._worker.pid, signal.SIGKILL)
    with pytest.raises(UnavailableError, match="ended with status -9"):
        await check
    assert len(await examiner.examine(SCHEMA, places)) == 1
    os.kill(examiner._worker.pid, signal.SIGKILL)
    worker = examiner._worker
    await until(lambda: not worker.runs)
    assert len(await examiner.examine(SCHEMA, places)) == 1


async def test_a_check_has_a_bound_of_time(tmp_path: Path) -> None:
    """A check that takes too long is refused, and its process ended."""
    examiner = make(tmp_path, upload_check_timeout_s=0.2)
    places = [put(tmp_path, GOOD)]
    examiner.warm()
    await until(lambda: examiner._worker is not None and examiner._warming is None)
    assert examiner._worker is not None
    worker = examiner._worker
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(TooLargeError, match=r"upload_check_timeout_s"):
        await examiner.examine(SCHEMA, places)
    assert not worker.runs
    await examiner.close()


async def test_a_check_has_a_bound_of_memory(tmp_path: Path) -> None:
    """A footer that needs more memory than the limit is refused; the agent keeps its own."""
    wide = pa.table({f"c{number}": [number] for number in range(50_000)})
    examiner = make(tmp_path, upload_check_memory_bytes=1 << 20)
    try:
        with pytest.raises(
            (TooLargeError, SchemaMismatchError), match=r"upload_check_memory_bytes|cannot be read"
        ):
            await examiner.examine(SCHEMA, [put(tmp_path, parquet(wide))])
    finally:
        await examiner.close()


async def test_a_check_that_is_given_up_leaves_no_answer_behind(
    examiner: FileExaminer, tmp_path: Path
) -> None:
    """The next request does not take the answers of the one that was cancelled."""
    twice, once = [put(tmp_path, GOOD)] * 2, [put(tmp_path, parquet(ROWS.slice(0, 1)))]
    await examiner.examine(SCHEMA, once)
    assert examiner._worker is not None
    os.kill(examiner._worker.pid, signal.SIGSTOP)
    check = asyncio.create_task(examiner.examine(SCHEMA, twice))
    await asyncio.sleep(0.05)
    check.cancel()
    await asyncio.gather(check, return_exceptions=True)
    assert [item.rows for item in await examiner.examine(SCHEMA, once)] == [1]
