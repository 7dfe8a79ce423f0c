"""The columns of a new table, from what a user has at hand: a schema, data, names with types, or DDL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidelock.client.values.data import is_pandas, open_rows
from tidelock.column_types import to_arrow
from tidelock.errors import BadRequestError
from tidelock.type_text import parse, unquoted

#: pyarrow Schema; DDL text; a mapping of names to types; or rows, whose columns are taken (`data.Data`).
Columns = Any

#: A type, and after it whether it may be null, SQL that makes its values, a constant of SQL, and a comment in
#: quotes.
_AFTER = re.compile(
    r"""(?P<type>.*?\S)
    (?:\s+(?P<null>not\s+null|null))?
    (?:\s+generated\s+always\s+as\s*\((?P<generated>.*)\)(?:\s+(?:stored|persisted))?
        (?:\s+(?P<then>not\s+null|null))?)?
    (?:\s+default\s+(?P<default>(?:[a-z_]+\s*)?'(?:[^']|'')*'|(?!not\b|comment\b)[^\s']+))?
    (?:\s+comment\s+'(?P<comment>(?:[^']|'')*)')?
    (?:\s+(?P<late>not\s+null|null))?\s*""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
#: A condition on the rows, in place of a column.
_CHECK = re.compile(
    r"""\s*constraint\s+(`(?:[^`]|``)+`|"(?:[^"]|"")+"|[^\s`"<>(),:]+)\s+check\s*\((.*)\)\s*""",
    re.IGNORECASE | re.DOTALL,
)
#: The metadata of a schema that holds its checks, as JSON.
_CHECKS = b"tidelock.checks"
#: The metadata of a field that holds the SQL which makes its values.
_GENERATED = b"generated"
_COLUMN = re.compile(r"\s*(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\"<>(),:]+)\s*:?\s*(.*?)\s*", re.DOTALL)
#: A quoted name, or any other sign.
_QUOTED_OR_NOT = re.compile(r"""`(?:[^`]|``)*`|"(?:[^"]|"")*"|(?<!\w)'(?:[^']|'')*'|.""", re.DOTALL)


def schema_of(columns: Columns) -> pa.Schema:
    """Return the columns as an Arrow schema; rows are not read, but those of a DataFrame tell its types.

    Args:
        columns: pyarrow Schema; DDL text (`"id bigint not null, name string"`), perhaps with checks
            (`constraint positive check (id > 0)`); a mapping of each name to a type, as in DDL or of pyarrow;
            or rows in any form that `insert` takes, a path as a `Path`.

    Raises:
        BadRequestError: The text or the mapping has no columns or an unknown type, or the object has no
            columns.
        SchemaMismatchError: A column of a DataFrame has values of several types.
    """
    if isinstance(columns, pa.Schema):
        return columns
    if isinstance(columns, str):
        return _of_text(columns)
    if isinstance(columns, Mapping):
        return pa.schema([_named(name, kind) for name, kind in columns.items()])
    if is_pandas(columns) or isinstance(columns, Path) or hasattr(columns, "__arrow_c_stream__"):
        return open_rows(columns).schema
    if hasattr(columns, "__arrow_c_schema__"):
        return pa.schema(columns)
    raise BadRequestError(
        "expected the columns of a table: a pyarrow Schema, a mapping of names to types, DDL text such as "
        "'id bigint not null, name string', or rows (pyarrow, pandas, polars, the Path of a Parquet file); "
        f"found {type(columns).__name__}"
    )


def checks_of(schema: pa.Schema) -> dict[str, str]:
    """Return the checks that a DDL text had, by their names; see :func:`schema_of`."""
    found = (schema.metadata or {}).get(_CHECKS)
    checks: dict[str, str] = {} if found is None else json.loads(found)
    return checks


def generated_in(schema: pa.Schema) -> dict[str, str | None]:
    """Return the SQL of generated columns, by their names; see :func:`field_of`."""
    found = ((field.name, (field.metadata or {}).get(_GENERATED)) for field in schema)
    return {name: sql.decode() for name, sql in found if sql is not None}


def _of_text(text: str) -> pa.Schema:
    fields, checks = [], {}
    for piece in _split(text):
        if match := _CHECK.fullmatch(piece):
            name = unquoted(match[1])
            if name in checks:
                raise BadRequestError(
                    f"two checks have the name {name}; give each a name of its own", check=name
                )
            checks[name] = match[2].strip()
        else:
            fields.append(_parsed(piece))
    return pa.schema(fields, {_CHECKS: json.dumps(checks)} if checks else None)


def field_of(name: str, text: str, *, nullable: bool = True) -> pa.Field:
    """Return a column of a type in the words of Spark's SQL, with what may follow it.

    A default, a comment and the SQL of a generated column are metadata of the field, under these words.

    Args:
        name: The name of the column.
        text: `bigint`, `decimal(9,2) not null default 0.00 comment 'per piece'`,
            `date generated always as (cast(sent as date))`; also other names that Spark has, such as
            `long`.
        nullable: Whether it may hold nulls if the text does not say so.

    Raises:
        BadRequestError: The text is no type.
    """
    match = _AFTER.fullmatch(text)
    found = match.groupdict() if match else {"type": text}
    try:
        kind = str(parse(found["type"]))
    except ValueError as error:
        raise BadRequestError(
            f"expected a type for column {name}, found {text.strip()!r} ({error}); after it may come "
            "`not null`, `generated always as (...)`, `default` with a constant, and `comment` with text in "
            "quotes",
            column=name,
        ) from None
    nulls = [word for key in ("null", "then", "late") if (word := found.get(key))]
    if len(nulls) > 1:
        raise BadRequestError(
            f"column {name} says twice whether it may be null: {text.strip()!r}; say it once", column=name
        )
    if nulls:
        nullable = nulls[0].lower() == "null"
    metadata = {}
    if (default := found.get("default")) is not None:
        metadata["default"] = default
    if (comment := found.get("comment")) is not None:
        metadata["comment"] = comment.replace("''", "'")
    if (generated := found.get("generated")) is not None:
        metadata[_GENERATED.decode()] = generated.strip()
    return pa.field(name, to_arrow(kind), nullable, metadata or None)


def _named(name: str, kind: object) -> pa.Field:
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    if isinstance(kind, str):
        return field_of(name, kind)
    raise BadRequestError(
        f"expected the type of column {name} as text or as a type of pyarrow, found {kind!r}", column=name
    )


def _parsed(text: str) -> pa.Field:
    match = _COLUMN.fullmatch(text)
    if match is None or not match[2]:
        raise BadRequestError(
            f"expected `name type`, e.g. 'id bigint not null', found {text.strip()!r}: columns are "
            "separated by commas"
        )
    return field_of(unquoted(match[1]), match[2])


def _split(text: str) -> Iterator[str]:
    """Yield what stands between the commas outside of brackets and quotes."""
    depth = angles = begin = 0
    for match in _QUOTED_OR_NOT.finditer(text):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth == 0:  # inside, they compare
            angles += (match[0] == "<") - (match[0] == ">")
        if match[0] == "," and depth == angles == 0:
            yield text[begin : match.start()]
            begin = match.end()
    yield text[begin:]
