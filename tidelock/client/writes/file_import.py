"""Parquet files of others that become parts of a table as they are: sent to a transaction, not decoded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from tidelock.client.agents.webhdfs import CHUNK_BYTES, StagingFolder
from tidelock.errors import BadRequestError

#: Files that are sent at a time.
SENT_AT_ONCE: Final = 4
#: Where a task of Spark leaves files; the seal takes those that it is told.
_ATTEMPTS: Final = "_temporary/0/_temporary"


def partition_of(path: Path, depth: int) -> str:
    """Return the partition that the folders above a file name; empty if they name none.

    Args:
        path: The file.
        depth: Number of the partition columns of its table.
    """
    names = path.parts[:-1][-depth:] if depth else ()
    return "/".join(names) if len(names) == depth and all("=" in name for name in names) else ""


def send_files(folder: StagingFolder, job: str, files: Sequence[Path], depth: int) -> list[str]:
    """Send files, and return their places in the folder.

    Args:
        folder: The staging folder of the table.
        job: UUID of the job that they belong to.
        files: The files.
        depth: Number of the partition columns of the table.

    Raises:
        BadRequestError: A file cannot be read.
        RefusedError, UnavailableError: As of `StagingFolder.locate`.
    """
    with ThreadPoolExecutor(SENT_AT_ONCE, thread_name_prefix="tidelock-import") as threads:
        return [*threads.map(partial(_send, folder, job, depth), range(len(files)), files)]


def _send(folder: StagingFolder, job: str, depth: int, number: int, path: Path) -> str:
    name = f"part-{number:05d}-{job}-c000.parquet"
    place = "/".join(
        filter(
            None,
            (
                _ATTEMPTS,
                f"attempt_{number}",
                partition_of(Path(os.path.normpath(path.absolute())), depth),
                name,
            ),
        )
    )
    try:
        source = path.open("rb")
    except OSError as error:
        raise BadRequestError(f"cannot read {path}: {error.strerror}", path=str(path)) from error
    with source:
        upload = folder.upload(place)
        try:
            shutil.copyfileobj(source, upload, CHUNK_BYTES)
            upload.finish()
        except BaseException:
            upload.abandon()
            raise
    return place
