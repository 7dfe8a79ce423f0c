"""Tables as folders of Parquet files on this machine: the files of a snapshot, as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Final

from tidelock.client.values.results import ExportResult
from tidelock.errors import BadRequestError
from tidelock.wire.tables import PartInfo

#: Files that are fetched at a time.
FETCHED_AT_ONCE: Final = 4
#: An empty file that Spark and others leave in a folder that is complete.
COMPLETE: Final = "_SUCCESS"


def export_parts(
    parts: Sequence[PartInfo], folder: Path, fetch: Callable[[PartInfo, Path], None]
) -> ExportResult:
    """Write the files of parts into a folder, in the folders of their partitions; the mark comes last.

    Args:
        parts: The parts.
        folder: The folder; it is made, or empty.
        fetch: Writes the file of a part.

    Raises:
        BadRequestError: The folder is not empty, or cannot be made or written.
        Others as `fetch`: the folder has some files then, and not the mark.
    """

    def write(part: PartInfo) -> int:
        target = folder / part.path / PurePosixPath(part.file).name
        target.parent.mkdir(parents=True, exist_ok=True)
        fetch(part, target)
        return target.stat().st_size

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadRequestError(f"folder {folder} is not empty: name another one", path=str(folder))
        with ThreadPoolExecutor(FETCHED_AT_ONCE, thread_name_prefix="tidelock-export") as threads:
            size = sum(threads.map(write, parts))
        (folder / COMPLETE).touch()
    except OSError as error:
        raise BadRequestError(f"cannot write below {folder}: {error}", path=str(folder)) from error
    return ExportResult(len(parts), sum(part.rows for part in parts), size)
