"""Conversion of rows from Arrow, pandas or Parquet files to an Arrow IPC stream, in bounded memory.

This module does not repeat the checks of an agent: the agent alone knows the table. It makes one conversion,
which changes no value: dictionary-encoded columns are decoded, because a stream without dictionaries can be
cut anywhere.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from tidelock.casts import decoded_type, without_dictionaries
from tidelock.errors import BadRequestError, SchemaMismatchError

#: Rows are sent in pieces of about this size.
PIECE_BYTES: Final = 4 << 20
#: Rows decoded at a time from a Parquet file.
FILE_BATCH_ROWS: Final = 64 * 1024
#: Schemas of rows whose message is kept for the next insert.
SCHEMAS_KEPT: Final = 256
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"

#: pyarrow Table, RecordBatch or RecordBatchReader; pandas DataFrame; anything with `__arrow_c_stream__`, such
#: as a DataFrame of polars; dicts, one for each row; path of a Parquet file or of a folder of them, or a list
#: of paths.
Data = Any


def repeatable(data: Data) -> bool:
    """Return whether the rows can be read a second time: a reader or another stream yields them once."""
    return isinstance(data, pa.Table | pa.RecordBatch | str | Path | Sequence) or is_pandas(data)


def open_rows(data: Data) -> pa.RecordBatchReader:
    """Return the rows as a reader that decodes them while it is read.

    Raises:
        BadRequestError: The object holds no rows; a file is missing or no Parquet file.
        SchemaMismatchError: Files of one insert differ in their columns, or pandas values have no Arrow type.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]).to_reader()
    if isinstance(data, pa.Table):
        return data.to_reader()
    if is_pandas(data):
        return _from_pandas(data).to_reader()
    if isinstance(data, str | Path):
        return _from_files(parquet_files([data]))
    if isinstance(data, list | tuple) and all(isinstance(item, str | Path) for item in data):
        return _from_files(parquet_files(data))
    if isinstance(data, list | tuple) and all(isinstance(item, Mapping) for item in data):
        return _from_dicts(data).to_reader()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise BadRequestError(
        "expected a pyarrow Table, RecordBatch or RecordBatchReader, a DataFrame of pandas or polars, a list "
        f"of dicts, or the path of Parquet files; found {type(data).__name__}"
    )


class _SentSchema:
    """The form in which rows of a schema are sent. To make it costs more than to encode a few rows."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = pa.schema([_plain(field) for field in schema])
        self.message = bytes(self.schema.serialize())
        self._encoded = any(decoded_type(field.type) != field.type for field in schema)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows in record batches of about the size of a piece."""
        batch = self._decoded(batch) if self._encoded else batch
        if batch.num_rows > 0 and batch.get_total_buffer_size() <= PIECE_BYTES:
            yield batch
            return
        yield from _slices(batch, PIECE_BYTES)

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [without_dictionaries(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


_sent = functools.lru_cache(maxsize=SCHEMAS_KEPT)(_SentSchema)


def ipc_stream(reader: pa.RecordBatchReader) -> Iterator[memoryview | bytes]:
    """Yield an Arrow IPC stream piece by piece."""
    sent = _sent(reader.schema)
    yield sent.message
    for batch in reader:
        for piece in sent.pieces(batch):
            yield memoryview(piece.serialize())
    yield _END_OF_STREAM


def small_streams_of(reader: pa.RecordBatchReader, bytes_max: int) -> Iterator[bytes]:
    """Yield complete Arrow IPC streams of consecutive rows, each with about ``bytes_max`` bytes of rows."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        for piece in _slices(batch, bytes_max):
            if waiting and size + piece.nbytes > bytes_max:
                yield _stream(reader.schema, waiting)
                waiting, size = [], 0
            waiting.append(piece)
            size += piece.nbytes
    if waiting:
        yield _stream(reader.schema, waiting)


def _slices(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in slices of about so many bytes."""
    rows = max(1, batch.num_rows * bytes_max // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _stream(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    return b"".join(ipc_stream(pa.RecordBatchReader.from_batches(schema, batches)))


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(decoded_type(field.type)).remove_metadata()


def is_pandas(data: object) -> bool:
    """Return whether data is a DataFrame."""
    # A DataFrame exists only where pandas was imported; a client without pandas does not need it.
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _from_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"a column of the DataFrame has values of several types ({error}); convert it first"
        ) from error


def _from_dicts(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"a column of the dicts has values of several types ({error}); convert them first"
        ) from error


def parquet_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the files for paths: a file itself, or all `*.parquet` of a folder that Spark would read.

    Raises:
        BadRequestError: No file is found, a folder cannot be listed, or links lead back to a folder above.
    """
    return [path / below for path, below in files_below(paths)]


def files_below(paths: Sequence[str | Path]) -> list[tuple[Path, Path]]:
    """Return each file as the path that was named and the rest below it, which is empty for a file.

    Links to folders and files are followed. Errors as `parquet_files`.
    """
    files: list[tuple[Path, Path]] = []
    for path in map(Path, paths):
        if path.is_dir():
            for above in path.resolve().parents:
                _require_no_lake(above)
        below = sorted(_below(path)) if path.is_dir() else [Path()]
        if not below:
            raise BadRequestError(f"folder {path} holds no file *.parquet", path=str(path))
        files += [(path, file) for file in below]
    if not files:
        raise BadRequestError("the list of files is empty")
    return files


def _below(folder: Path) -> Iterator[Path]:
    """Yield the Parquet files below a folder, relative to it."""
    for place, inner, names in os.walk(folder, onerror=_not_listed, followlinks=True):
        here = Path(place)
        _require_no_lake(here)
        if (real := here.resolve()) in (above.resolve() for above in _above(here, folder)):
            raise BadRequestError(f"{here} is a link to {real}, a folder above it", path=str(here))
        inner[:] = [name for name in inner if not _hidden(name)]
        for name in names:
            if name.endswith(".parquet") and not _hidden(name):
                yield (here / name).relative_to(folder)


def _require_no_lake(folder: Path) -> None:
    """Refuse the folder of a table of another system: files that it has removed lie there, too."""
    if (folder / "_delta_log").is_dir():
        raise BadRequestError(
            f"{folder} is a table of Delta Lake, and files that it has removed lie there, too; open it by "
            "deltalake.DeltaTable, and give that to import_files",
            path=str(folder),
        )
    if any((folder / "metadata").glob("*.metadata.json")):
        raise BadRequestError(
            f"{folder} is a table of Iceberg, and files that it has removed lie there, too; open it by "
            "pyiceberg, e.g. StaticTable.from_metadata, and give that to import_files",
            path=str(folder),
        )


def _above(here: Path, folder: Path) -> Iterator[Path]:
    """Yield the folders above one, up to and with `folder`."""
    while here != folder:
        here = here.parent
        yield here


def _not_listed(error: OSError) -> NoReturn:
    raise BadRequestError(f"cannot list {error.filename}: {error.strerror}", path=error.filename) from error


def _hidden(name: str) -> bool:
    """Return whether Spark skips a file or folder: unfinished files of a running job, and metadata."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _from_files(files: Sequence[Path]) -> pa.RecordBatchReader:
    schemas = [_schema(path) for path in files]
    for path, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise SchemaMismatchError(
                f"{path} has other columns than {files[0]}; insert them one by one, or make them alike",
                path=str(path),
            )
    return pa.RecordBatchReader.from_batches(schemas[0], _batches(files, schemas[0]))


def _batches(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for path in files:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=FILE_BATCH_ROWS):
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        except (OSError, pa.ArrowInvalid) as error:
            raise BadRequestError(f"cannot read {path}: {error}", path=str(path)) from error


def _schema(path: Path) -> pa.Schema:
    try:
        return pa.schema([field.remove_metadata() for field in pq.read_schema(path)])
    except FileNotFoundError as error:
        raise BadRequestError(f"there is no file {path}", path=str(path)) from error
    except (OSError, pa.ArrowInvalid) as error:
        raise BadRequestError(f"expected a Parquet file at {path}: {error}", path=str(path)) from error
