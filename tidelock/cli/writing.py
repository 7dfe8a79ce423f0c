"""Commands that change something: create-table, insert, land, kill."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import pyarrow as pa
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tidelock.cli import output
from tidelock.cli.row_files import Format, count_of, format_of, rows_of
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client import Database, Transaction
from tidelock.client.values.columns import field_of
from tidelock.client.writes.transaction import Wait
from tidelock.column_names import split_list
from tidelock.column_types import NAMES
from tidelock.type_text import unquoted
from tidelock.wire.tables import CommittedTable, TableInfo

_PANEL = "Writing"
#: A name, perhaps in quotes, and a type.
_COLUMN = re.compile(r"(`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^:`\"]+):(.+)", re.DOTALL)

WaitFor = Annotated[str, typer.Option(help=f"Return when it is readable on: {', '.join(get_args(Wait))}.")]
FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="Format of the files; default: by their names.", show_default=False),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("create-table", rich_help_panel=_PANEL)(on_target(create_table))
    app.command("alter-table", rich_help_panel=_PANEL)(on_target(alter_table))
    app.command("drop-table", rich_help_panel=_PANEL)(on_target(drop_table))
    app.command(rich_help_panel=_PANEL)(on_target(insert))
    app.command(rich_help_panel=_PANEL)(on_target(land))
    app.command(rich_help_panel=_PANEL)(on_target(kill))


def _repeated(text: str, *names: str) -> Any:
    """Return an option that may be given several times."""
    return typer.Option(*names, help=f"{text}; may be repeated.", show_default=False)


def create_table(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    columns: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"`name:type`, or `name:type:null` for one that may hold nulls. Types: {', '.join(NAMES)}.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="Take the columns of this Parquet file.", show_default=False)
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(help="Take the columns and the rows of this SELECT.", show_default=False),
    ] = None,
    partition_by: Annotated[list[str] | None, _repeated("Column that becomes folders")] = None,
    sort_by: Annotated[list[str] | None, _repeated("Column to sort files by")] = None,
    properties: Annotated[list[str] | None, _repeated("`key=value`", "--property")] = None,
    derived_from: Annotated[
        str | None,
        typer.Option(help="Table whose inserts this one follows, with --derived-sql.", show_default=False),
    ] = None,
    derived_sql: Annotated[
        str | None,
        typer.Option(
            help="SELECT that makes rows of this table from the `inserted` rows.", show_default=False
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Change nothing if there is a table of this name.")
    ] = False,
    or_replace: Annotated[
        bool, typer.Option("--or-replace", help="Drop the table of this name in the same commit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a table."""
    if [like is None, not columns, sql is None].count(False) != 1:
        raise typer.BadParameter("give columns as `name:type`, or --like FILE, or --sql SELECT")
    if if_not_exists and or_replace:
        raise typer.BadParameter("give --if-not-exists or --or-replace")
    schema = like or (pa.schema([parse_column(text) for text in columns]) if columns else None)
    pairs = [split(text, "=", "--property") for text in properties or []]
    with target.connect() as db:
        made = db.create_table(
            name,
            schema,
            sql=sql,
            partition_by=partition_by or [],
            sort_by=sort_by or [],
            properties=dict(pairs),
            derived_from=derived_from,
            derived_sql=derived_sql,
            if_not_exists=if_not_exists,
            or_replace=or_replace,
        )
    if as_json:
        output.print_json(made)
    else:
        output.say(_told_of(made))


def _told_of(made: CommittedTable | TableInfo) -> str:
    if isinstance(made, TableInfo):
        return f"table {made.name} exists already"
    filled = "" if made.rows is None else f" with {made.rows:,} rows"
    return f"table {made.name} created at CSN {made.csn}{filled}"


def alter_table(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    rename_to: Annotated[
        str | None, typer.Option(help="Another name, also in another namespace.", show_default=False)
    ] = None,
    properties: Annotated[list[str] | None, _repeated("`key=value`", "--property")] = None,
    unset: Annotated[list[str] | None, _repeated("Property to take away")] = None,
    add: Annotated[list[str] | None, _repeated("Column to add, as `name type`")] = None,
    drop: Annotated[list[str] | None, _repeated("Column to drop")] = None,
    rename: Annotated[list[str] | None, _repeated("Column to rename, as `name=other`")] = None,
    nullable: Annotated[list[str] | None, _repeated("Required column that may be null")] = None,
    types: Annotated[list[str] | None, _repeated("Wider type of a column, as `name=type`", "--type")] = None,
    order: Annotated[
        str | None,
        typer.Option(help="Columns that come first, separated by commas.", show_default=False),
    ] = None,
    default: Annotated[list[str] | None, _repeated("Default of a column, as `name=constant`")] = None,
    comment: Annotated[list[str] | None, _repeated("What a column means, as `name=text`")] = None,
    checks: Annotated[list[str] | None, _repeated("Condition of each row, as `name=SQL`", "--check")] = None,
    uncheck: Annotated[list[str] | None, _repeated("Check to take away")] = None,
    ordinary: Annotated[list[str] | None, _repeated("Generated column that rows bring from now on")] = None,
    as_json: Json = False,
) -> None:
    """Give a table another name, other properties, other columns or other checks."""
    changes: dict[str, str | None] = dict.fromkeys(unset or [])
    changes |= dict(split(text, "=", "--property") for text in properties or [])
    judged: dict[str, str | None] = dict.fromkeys(uncheck or [])
    judged |= dict(split(text, "=", "--check name=SQL") for text in checks or [])
    columns = any((add, drop, rename, nullable, types, order, default, comment, judged, ordinary))
    if (rename_to is None) == (not changes and not columns):
        raise typer.BadParameter(
            "give --rename-to NAME, or --property KEY=VALUE, --unset KEY, --add, --drop, --rename, "
            "--nullable, --type, --order, --default, --comment, --check, --uncheck and --ordinary"
        )
    with target.connect() as db:
        if rename_to is not None:
            made = db.rename_table(name, rename_to)
        else:
            made = db.alter_table(
                name,
                changes,
                drop=drop or (),
                rename=dict(split(text, "=", "--rename name=other") for text in rename or []),
                add=", ".join(add) if add else None,
                nullable=nullable or (),
                types=dict(split(text, "=", "--type name=type") for text in types or []),
                order=split_list(order or ""),
                default=dict(split(text, "=", "--default name=constant") for text in default or []),
                comment=dict(split(text, "=", "--comment name=text") for text in comment or []),
                checks=judged,
                generated=dict.fromkeys(ordinary or []),
            )
    if as_json:
        output.print_json(made)
    else:
        output.say(f"table {made['name']} changed at CSN {made['csn']}")


def drop_table(
    target: ClusterOptions,
    name: Annotated[str, typer.Argument(help="`name` or `namespace.name`.", show_default=False)],
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Change nothing if there is no table of this name.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Drop a table: readers of earlier CSNs go on to see it as long as history is kept."""
    with target.connect() as db:
        csn = db.drop_table(name, if_exists=if_exists)
    if as_json:
        output.print_json({"name": name, "csn": csn})
    elif csn is None:
        output.say(f"there is no table {name}")
    else:
        output.say(f"table {name} dropped at CSN {csn}")


def insert(
    target: ClusterOptions,
    rows: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE FILE...",
            help="A table and files: Parquet (also folders), CSV, TSV, lines of JSON, - for standard input; "
            "or TABLE=FILE for several tables.",
        ),
    ],
    format_: FormatOption = None,
    label: Annotated[
        str | None,
        typer.Option(help="Name of this load: a second one of that name is refused.", show_default=False),
    ] = None,
    wait: WaitFor = "home",
    as_json: Json = False,
) -> None:
    """Insert files in one transaction: all rows of all tables become visible together."""
    until = checked_wait(wait)
    work = _work(rows)
    inserted: dict[str, int] = {}
    with target.connect() as db, db.begin(label) as tx:
        for table, files in work.items():
            with reading(table, files, columns_of(tx, table), format_) as reader:
                inserted[table] = tx.insert(table, reader).rows
        result = tx.commit(wait=until)
    if as_json:
        output.print_json({"tid": result.tid, "csn": result.csn, "rows": inserted})
        return
    counts = ", ".join(f"{count:,} rows into {table}" for table, count in inserted.items())
    output.say(f"{counts} at CSN {result.csn} (transaction {result.tid})")


def land(
    target: ClusterOptions,
    table: Annotated[str, typer.Argument(help="A table with the property `landing=on`.", show_default=False)],
    files: Annotated[list[Path], typer.Argument(help="Files, as for `insert`.", show_default=False)],
    format_: FormatOption = None,
    at_least_once: Annotated[
        bool,
        typer.Option(
            "--at-least-once", help="Send rows again whose answer was lost; they may be written twice."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write files to a landing table, in pieces that count each by itself."""
    with target.connect() as db, reading(table, files, columns_of(db, table), format_) as reader:
        done = db.land(table, reader, at_least_once=at_least_once)
    if as_json:
        output.print_json({"rows": done.rows, "csn": done.csn})
    else:
        output.say(f"{done.rows:,} rows written to {table}")


def kill(
    target: ClusterOptions,
    tid: Annotated[str, typer.Argument(help="Transaction id; `txns` lists them.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Roll back an open transaction of any client; one whose commit was requested is refused."""
    with target.connect() as db:
        db.kill(tid)
    if as_json:
        output.print_json({"tid": tid, "state": "rolled_back"})
    else:
        output.say(f"{tid} rolled back")


def checked_wait(text: str) -> Wait:
    """Return the value of --wait; BadParameter if it is none of them."""
    if text not in get_args(Wait):
        raise typer.BadParameter(f"expected one of {', '.join(get_args(Wait))}", param_hint="--wait")
    return cast("Wait", text)


def parse_column(text: str) -> pa.Field:
    """Read `name:type` or `name:type:null`."""
    rest = text.removesuffix(":null")
    match = _COLUMN.fullmatch(rest)
    if match is None:
        raise typer.BadParameter(f"expected name:type or name:type:null, found {text!r}")
    return field_of(unquoted(match[1]), match[2], nullable=rest != text)


def _work(arguments: list[str]) -> dict[str, list[Path]]:
    """Return the files to insert, by table."""
    work: dict[str, list[Path]] = {}
    if "=" in arguments[0]:
        for text in arguments:
            table, file = split(text, "=", "TABLE=FILE")
            work.setdefault(table, []).append(Path(file))
        return work
    if len(arguments) == 1:
        raise typer.BadParameter("expected files after the table: TABLE FILE..., or TABLE=FILE...")
    return {arguments[0]: [Path(file) for file in arguments[1:]]}


def split(text: str, separator: str, form: str) -> tuple[str, str]:
    """Return what stands before and behind the first separator; BadParameter if one of them is missing."""
    before, match, after = text.partition(separator)
    if not match or not before or not after:
        raise typer.BadParameter(f"expected the form {form}, found {text!r}")
    return before, after


def columns_of(holder: Database | Transaction, table: str) -> Callable[[], pa.Schema]:
    """Return a function that asks for the columns of a table, in Arrow's types.

    Generated ones say so in their metadata.
    """

    def ask() -> pa.Schema:
        found = holder.definition(table) if isinstance(holder, Transaction) else holder.table(table)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["arrow_schema"])))
        made = {column.name: column.generated for column in found.columns if column.generated is not None}
        return pa.schema(
            [
                field.with_metadata({"generated": made[field.name]}) if field.name in made else field
                for field in schema
            ]
        )

    return ask


@contextlib.contextmanager
def reading(
    table: str, files: Sequence[Path], columns: Callable[[], pa.Schema], format_: Format | None
) -> Iterator[pa.RecordBatchReader]:
    """Yield the rows of files, with a progress bar on a terminal; arguments and errors as `rows_of`."""
    console = output.err()
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found = format_of(files, format_)
    reader = rows_of(files, found, columns)
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(table, total=count_of(files, found))

        def batches() -> Iterator[Any]:
            for batch in reader:
                yield batch
                progress.update(task, advance=batch.num_rows)

        yield pa.RecordBatchReader.from_batches(reader.schema, batches())
