"""Parquet files of others become a table: linked and sent, beside what hashing and copying them takes.

The files lie on the disk of the agents and have been written just before, so all ways read them out of the
page cache alike. Each way has a cluster of its own, one at a time, which is deleted afterwards.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from bench.parts.load import program
from tidelock.cluster import LocalCluster

#: Columns of the files. Random numbers are as large as Parquet files as they are in memory.
_COLUMNS: Final = 4
_TABLE: Final = "imported"
_PIECE_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 3600.0
#: The ways that are compared with hashing.
_WAYS: Final = ("copy", "alone", "linked", "sent")


def run(folder: Path, *, files: int, file_mb: int) -> dict[str, Any]:
    """Measure one import of each way.

    Args:
        folder: An empty folder, which all clusters and files lie in.
        files: The number of the files.
        file_mb: The size of each, in MB.
    """
    source = folder / "source"
    source.mkdir(parents=True)
    made = [_file(source / f"{number}.parquet", number, file_mb << 20) for number in range(files)]
    found = {
        "hash_s": _timed(partial(_hash, made)),
        "copy_s": _copied(made, folder / "copy"),
        "linked_s": _import(folder / "linked", made, {"TIDELOCK_IMPORT_DIR": str(source)}),
        "sent_s": _import(folder / "sent", made, {}),
        "alone_s": _import(folder / "alone", made, {"TIDELOCK_IMPORT_DIR": str(source)}, replicas=1),
    }
    size = sum(path.stat().st_size for path in made)
    ratios = {f"{way}_ratio": round(found[f"{way}_s"] / found["hash_s"], 2) for way in _WAYS}
    return {"files": files, "mb": size >> 20, **{key: round(s, 2) for key, s in found.items()}, **ratios}


def _file(path: Path, seed: int, size: int) -> Path:
    drawn = np.random.default_rng(seed)
    rows = size // (8 * _COLUMNS)
    columns = {f"c{number}": drawn.integers(0, 1 << 62, rows) for number in range(_COLUMNS)}
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=False)
    return path


def _timed(call: Callable[[], object]) -> float:
    begun = time.monotonic()
    call()
    return time.monotonic() - begun


def _hash(files: Sequence[Path]) -> None:
    for path in files:
        digest = xxhash.xxh3_128()
        with path.open("rb", buffering=0) as file:
            while data := file.read(_PIECE_BYTES):
                digest.update(data)


def _copied(files: Sequence[Path], folder: Path) -> float:
    """Copy the files, and make the copies durable; return the seconds."""
    folder.mkdir()
    copy = partial(subprocess.run, check=True)
    taken = _timed(lambda: copy([program("cp"), *map(str, files), str(folder)]))
    taken += _timed(lambda: copy([program("sync"), "--file-system", str(folder)]))
    shutil.rmtree(folder)
    return taken


def _import(folder: Path, files: Sequence[Path], environment: dict[str, str], *, replicas: int = 3) -> float:
    """Return the seconds until the rows are committed, with their copies."""
    made = LocalCluster.create(folder, replicas=replicas, environment=environment)
    with made as cluster, cluster.connect("r1") as db:
        db.create_table(_TABLE, pq.read_schema(files[0]))
        taken = _timed(partial(db.import_files, _TABLE, files, timeout_s=_TIMEOUT_S))
    shutil.rmtree(folder)
    return taken
