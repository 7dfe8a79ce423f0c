"""Rows of files for a table: Parquet, CSV and lines of JSON, also from standard input.

Text has no types, so CSV and JSON are read with those of the table. A type that text cannot have is the
agent's to refuse, as for rows of a program.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv, json, types

from tidelock.client.values.data import open_rows, parquet_files
from tidelock.column_defaults import time_of
from tidelock.errors import BadRequestError

#: The argument that stands for standard input.
STDIN: Final = Path("-")


class Format(StrEnum):
    """How the rows of a file are written."""

    PARQUET = "parquet"
    CSV = "csv"
    TSV = "tsv"
    #: One object in each line.
    JSON = "json"


_SUFFIXES: Final = {
    ".csv": Format.CSV,
    ".tsv": Format.TSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
}
_PACKED: Final = frozenset({".gz", ".bz2", ".zst", ".lz4"})


def format_of(files: Iterable[Path], given: Format | None = None) -> Format:
    """Return the format of files: the given one, or that which their names say, Parquet for other names.

    BadRequestError: Their names say several formats, or standard input has none.
    """
    if given is not None:
        return given
    formats = {_format(file) for file in files}
    if len(formats) != 1:
        raise BadRequestError(
            f"expected files of one format, found {', '.join(sorted(formats))}: insert them one by one, or "
            "name the format of all with --format"
        )
    return formats.pop()


def rows_of(files: Sequence[Path], format_: Format, columns: Callable[[], pa.Schema]) -> pa.RecordBatchReader:
    """Return the rows of files, which are decoded while they are read.

    Args:
        files: Files of one format; folders of Parquet files; `STDIN`.
        format_: The format.
        columns: Returns the columns of the table, in Arrow's types; asked for text only.

    Raises:
        BadRequestError: A file is missing, is of another format, or has a value that its column cannot have
            (also while the rows are read).
        SchemaMismatchError: As `client.values.data.open_rows`.
    """
    if format_ is Format.PARQUET:
        if STDIN in files:
            raise BadRequestError("Parquet cannot be read from standard input, only from a file")
        return open_rows(list(files))
    readers = _texts(files, format_, columns())
    first = next(readers)
    return pa.RecordBatchReader.from_batches(first.schema, _batches(first, readers))


def count_of(files: Sequence[Path], format_: Format) -> int | None:
    """Return the number of rows by the metadata of Parquet files; None for text, which has none."""
    if format_ is not Format.PARQUET:
        return None
    try:
        return sum(int(pq.read_metadata(path).num_rows) for path in parquet_files(files))
    except (OSError, pa.ArrowInvalid) as error:
        raise BadRequestError(f"cannot read the metadata of a file: {error}") from error


def _format(file: Path) -> Format:
    if file == STDIN:
        raise BadRequestError("rows from standard input need --format csv, tsv or json")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in _PACKED:
        suffixes.pop()
    return _SUFFIXES.get(suffixes[-1] if suffixes else "", Format.PARQUET)


class _Text:
    """The rows of one text file.

    Attributes:
        schema: Its columns, with the types of the table.
    """

    def __init__(self, file: Path, format_: Format, table: pa.Schema) -> None:
        self._name = "standard input" if file == STDIN else str(file)
        with self._refusing():
            self._reader = _opened(file, format_, table)
            known = {field.name: field.type for field in table}
            self.schema = pa.schema(
                [field.with_type(known.get(field.name, field.type)) for field in self._reader.schema]
            )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self._refusing():
            for batch in self._reader:
                yield _typed(batch, self.schema)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BadRequestError(f"there is no file {self._name}", path=self._name) from error
        except pa.ArrowException as error:
            raise BadRequestError(f"cannot read {self._name}: {error}", path=self._name) from error


def _typed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows in the types of a table; ArrowInvalid for a text that is no value of its column."""
    arrays = []
    for values, field in zip(batch.columns, schema, strict=True):
        if types.is_time(field.type) and types.is_string(values.type):  # Arrow has no cast between these
            try:
                times = [None if text is None else time_of(text) for text in values.to_pylist()]
            except ValueError as error:
                raise pa.ArrowInvalid(f"column {field.name}: {error}") from None
            arrays.append(pa.array(times, field.type))
        else:
            arrays.append(values.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _opened(file: Path, format_: Format, table: pa.Schema) -> pa.RecordBatchReader:
    source: Any = pa.PythonFile(sys.stdin.buffer, mode="r") if file == STDIN else pa.input_stream(str(file))
    if format_ is Format.JSON:
        # Arrow's reader knows instants and decimals as text, but no dates and no times of day. The agent
        # misses what is required. A generated column that no line has would come as nulls.
        texts = pa.string()
        columns = [
            (field.name, texts if types.is_date(field.type) or types.is_time(field.type) else field.type)
            for field in table
            if b"generated" not in (field.metadata or {})
        ]
        return json.open_json(source, parse_options=json.ParseOptions(explicit_schema=pa.schema(columns)))
    delimiter = "\t" if format_ is Format.TSV else ","
    return csv.open_csv(
        source,
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=csv.ConvertOptions(column_types=table),
    )


def _texts(files: Iterable[Path], format_: Format, table: pa.Schema) -> Iterator[_Text]:
    for file in files:
        yield _Text(file, format_, table)


def _batches(first: _Text, others: Iterator[_Text]) -> Iterator[pa.RecordBatch]:
    yield from first
    for one in others:
        if not one.schema.equals(first.schema):
            raise BadRequestError(
                f"expected the columns {', '.join(first.schema.names)} in all files, found "
                f"{', '.join(one.schema.names)}; insert them one by one"
            )
        yield from one
