"""Parquet files of others that become parts of a table as they are: not decoded, and linked or sent.

The first file shows whether the agent can link it. If not, the bytes of all files are sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelock.client.agents.webhdfs import CHUNK_BYTES, StagingFolder
from tidelock.client.values.data import files_below
from tidelock.errors import BadRequestError

#: Files that are sent at a time.
SENT_AT_ONCE: Final = 4
#: Where a task of Spark leaves files; the seal takes those that it is told.
_ATTEMPTS: Final = "_temporary/0/_temporary"


@dataclass(frozen=True)
class ImportFile:
    """A file, and the partition that its folders name.

    Args:
        path: The file.
        partition: Its folders `name=value`, joined by `/`; empty if they name none.
    """

    path: Path
    partition: str


def import_files_of(paths: Sequence[str | Path], depth: int) -> list[ImportFile]:
    """Return the files for paths, each with its partition.

    The innermost `depth` folders count, whether they are part of the path that was named or below it.

    Args:
        paths: Parquet files, and folders whose files `*.parquet` are taken.
        depth: Number of the partition columns of the table.

    Raises:
        BadRequestError: No file is found, or a folder cannot be listed; a folder below the path that was
            named is of a partition column that the table does not have.
    """
    return [_import_file(named, below, depth) for named, below in files_below(paths)]


def _import_file(named: Path, below: Path, depth: int) -> ImportFile:
    path = named / below
    inner = below.parts[:-1]
    if lost := [name for name in inner[: max(0, len(inner) - depth)] if "=" in name]:
        raise BadRequestError(
            f"the table has {depth} partition column{'' if depth == 1 else 's'}: {'/'.join(lost)}, of which "
            f"the folders of {path} tell, would be lost; insert the rows with these columns instead",
            path=str(path),
        )
    folders = Path(os.path.normpath(path.absolute())).parts[:-1]
    names = folders[-depth:] if depth else ()
    named_all = len(names) == depth and all("=" in name for name in names)
    return ImportFile(path, "/".join(names) if named_all else "")


def send_files(folder: StagingFolder, job: str, files: Sequence[ImportFile]) -> list[str]:
    """Send files, and return their places in the folder.

    Args:
        folder: The staging folder of the table.
        job: UUID of the job that they belong to.
        files: The files.

    Raises:
        BadRequestError: A file cannot be read.
        RefusedError, UnavailableError: As of `StagingFolder.locate`.
    """
    places = [_place(job, number, file) for number, file in enumerate(files)]
    left = [*zip(places, files, strict=True)]
    take = _send
    if left and _linked(folder, *left[0]):
        take, left = _take, left[1:]
    with ThreadPoolExecutor(SENT_AT_ONCE, thread_name_prefix="tidelock-import") as threads:
        list(threads.map(lambda one: take(folder, *one), left))  # an error cancels those that wait
    return places


def _place(job: str, number: int, file: ImportFile) -> str:
    name = f"part-{number:05d}-{job}-c000.parquet"
    return "/".join(filter(None, (_ATTEMPTS, f"attempt_{number}", file.partition, name)))


def _linked(folder: StagingFolder, place: str, file: ImportFile) -> bool:
    try:
        return folder.link(place, file.path)
    except OSError as error:
        raise _unreadable(file.path, error) from error


def _take(folder: StagingFolder, place: str, file: ImportFile) -> None:
    if not _linked(folder, place, file):
        _send(folder, place, file)


def _send(folder: StagingFolder, place: str, file: ImportFile) -> None:
    upload = folder.upload(place)
    try:
        for data in _pieces(file.path):
            upload.write(data)
        upload.finish()
    except BaseException:
        upload.abandon()
        raise


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as source:
            while data := source.read(CHUNK_BYTES):
                yield data
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> BadRequestError:
    return BadRequestError(f"cannot read {path}: {error.strerror}", path=str(path))
