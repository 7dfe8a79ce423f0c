"""Changes of the columns of a table: added, dropped, renamed, nullable, wider, in another order.

No part is rewritten, unless the pages of a column do not hold its wider type, or a generated column is added,
which has another value in each row. A definition says what the
columns were called in earlier parts, and from which CSN on parts have them (:mod:`.layouts`); the CSN of
the change itself is known when it is committed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tidelock.column_names import join_list
from tidelock.column_types import to_arrow
from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError, TooLargeError
from tidelock.replica_agent.tables.checks import require_sql
from tidelock.replica_agent.tables.column_defaults import default_text, plain_bytes
from tidelock.replica_agent.tables.layouts import HERE, Layout
from tidelock.replica_agent.tables.schema import LIMITS, ColumnLimits, TableSchema, check_names
from tidelock.replica_agent.tables.widening import is_wider, needs_other_pages, widened
from tidelock.table_columns import Column, FormerColumn
from tidelock.wire.statements import Value


class ColumnChanges(msgspec.Struct, frozen=True):
    """Changes of columns, made in this order: drops and renames, then additions, then the order.

    Attributes:
        drop: Names of columns.
        rename: New names by the names of before.
        add: New columns.
        nullable: Names of required columns that may be null from then on.
        types: Wider types of columns, by the names of before.
        order: Names of the columns that come first, in their order; the others follow in theirs.
        default: New defaults of columns, by their new names; null takes a default away.
        comment: New comments of columns, by their new names; None takes a comment away.
        checks: SQL of new checks, by their names and with the new names of columns; None takes a check away.
        generated: SQL of columns that are added, by their names; None: rows bring the values of a column.
    """

    drop: Sequence[str] = ()
    rename: Mapping[str, str] = msgspec.field(default_factory=dict)
    add: Sequence[Column] = ()
    nullable: Sequence[str] = ()
    types: Mapping[str, str] = msgspec.field(default_factory=dict)
    order: Sequence[str] = ()
    default: Mapping[str, Value] = msgspec.field(default_factory=dict)
    comment: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    checks: Mapping[str, str | None] = msgspec.field(default_factory=dict)
    generated: Mapping[str, str | None] = msgspec.field(default_factory=dict)

    @property
    def files(self) -> bool:
        """Whether files have other columns from then on."""
        return bool(self.drop or self.rename or self.add or self.nullable or self.types)

    def rewrite(self, schema: TableSchema) -> bool:
        """Return whether the rows of a table are to be written again: pages do not hold what they should."""
        return any((*(column.generated for column in self.add), *self.generated.values())) or any(
            column.name in self.types
            and column.name not in schema.partition_by
            and needs_other_pages(self.types[column.name], column.type)
            for column in schema.columns
        )

    def __bool__(self) -> bool:
        """Return whether there is a change."""
        described = self.order or self.default or self.comment
        return self.files or bool(described or self.checks or self.generated)


NO_CHANGES: Final = ColumnChanges()


def changed(schema: TableSchema, changes: ColumnChanges, limits: ColumnLimits = LIMITS) -> TableSchema:
    """Return the schema of a table after changes of its columns.

    Raises:
        BadRequestError: A column does not exist, or exists already; or the table would not fit its
            partitions, its order, its unique key, its checks, or the SQL that makes its rows; or a default
            is no value of its column.
        TooLargeError: It would have more columns than ``limits`` allow.
    """
    for named in (changes.rename, changes.types):
        _require_known(schema, [*changes.drop, *named])
    if changes.files or changes.generated:
        _require_free(schema)
    if changes.types and schema.lands:
        raise BadRequestError(
            f"{schema.name} is a landing table (property landing), and files of rows that have landed may "
            "come with the types of now: add a column of the wider type, and let rows land there",
            table=schema.name,
        )
    for name in changes.drop:
        _require_droppable(schema, name)
    for name in changes.rename:
        if name in schema.partition_by:
            raise BadRequestError(
                f"column {name} of table {schema.name} cannot be renamed: the folders of its partitions are "
                "named by it; create a table with the other name, and insert the rows there",
                column=name,
            )
    for name in changes.nullable:
        _require_required(schema, changes, name)
    for name, kind in changes.types.items():
        _require_wider(schema, name, kind)
    schema = schema.with_checks(changes.checks, limits)
    _require_unchecked(schema, changes)
    _require_not_read(schema, changes)
    kept = [_changed(column, changes) for column in schema.columns if column.name not in changes.drop]
    new = _with_sql(schema, changes, limits)
    added = [_added(schema, column, number) for number, column in enumerate(new, 1)]
    columns = [*kept, *added]
    given = (*changes.rename.values(), *(column.name for column in added))
    check_names(schema.name, [column.name for column in columns], given, limits.name_bytes)
    if len(columns) > limits.columns:
        raise TooLargeError(
            f"table {schema.name} would have {len(columns)} columns; the limit is {limits.columns} "
            "(columns_max): drop others, or spread them over several tables",
            limit=limits.columns,
            found=len(columns),
        )
    made = dataclasses.replace(
        schema,
        columns=_ordered(
            schema, _with_defaults_and_comments(columns, changes, schema, limits), changes.order
        ),
        sort_by=tuple(changes.rename.get(name, name) for name in schema.sort_by),
        properties=_properties(schema, changes.rename),
        columns_made=schema.columns_made + len(added),
        dropped_at=HERE if changes.drop else schema.dropped_at,
    )
    made.check_columns()
    return made


def returned(now: TableSchema, then: TableSchema, later: Sequence[tuple[Csn, TableSchema]]) -> TableSchema:
    """Return a schema with the columns of before, by which parts of any CSN are shown right.

    Its checks stay.

    Args:
        now: The schema.
        then: That of before.
        later: The schemas that followed, the earliest first, each with the CSN from which it held.

    Raises:
        BadRequestError: A check names a column that did not exist then, or had another name.
    """
    names = {column.id: column.name for column in now.columns}
    had = {column.id: column.name for column in then.columns}
    for check in now.checks:
        if lost := [names[one] for one in check.columns if had.get(one) != names[one]]:
            raise BadRequestError(
                f"check {check.name} of table {now.name} names column {lost[0]}, which the table did not "
                f"have then under that name ({check.sql}); take the check away before",
                check=check.name,
                column=lost[0],
            )
    ids = {column.id for column in then.columns}
    others = {column.id for _, schema in later for column in schema.columns} - ids
    return dataclasses.replace(
        now,
        columns=tuple(_returned(column, later) for column in then.columns),
        sort_by=then.sort_by,
        dropped_at=HERE if others else then.dropped_at,
    )


def _returned(column: Column, later: Sequence[tuple[Csn, TableSchema]]) -> Column:
    """Return a column as it was, with what it was in the parts of later schemas."""
    was = list(column.was)
    now: tuple[str | None, str, bool] = (column.name, column.type, column.nullable)
    state = now
    for csn, schema in later:
        there = next((one for one in schema.columns if one.id == column.id), None)
        found = (None, *now[1:]) if there is None else (there.name, there.type, there.nullable)
        if found != state:
            was.append(FormerColumn(csn, *state[:2]))
            state = found
    if state != now:
        was.append(FormerColumn(HERE, *state[:2]))
    return dataclasses.replace(column, was=tuple(was))


def why_not_held(schema: TableSchema, layout: Layout) -> str:
    """Return why files of a layout do not hold a column as it is now; an empty text if they hold all."""
    columns = {column.name: column for column in schema.columns}
    for shown in layout.columns:
        column, then = columns[shown.name], shown.stored_type
        words = f"column {column.name} of table {schema.name}"
        if shown.stored is None and shown.value is None and not column.nullable:
            return f"{words} is required, and not there"
        if then is not None and needs_other_pages(column.type, then):
            return f"{words} is {column.type} now, and {then}"
    return ""


def _require_known(schema: TableSchema, names: Sequence[str]) -> None:
    known = [column.name for column in schema.columns]
    for name in names:
        if name not in known:
            raise BadRequestError(
                f"table {schema.name} has no column {name}; its columns are {', '.join(known)}", column=name
            )
        if names.count(name) > 1:
            raise BadRequestError(
                f"column {name} of table {schema.name} is named twice by the change; name it once",
                column=name,
            )


def _require_free(schema: TableSchema) -> None:
    """Refuse changes of a table whose columns are decided elsewhere."""
    if schema.derivation is not None:
        raise BadRequestError(
            f"table {schema.name} has the columns that its derived_sql gives, which cannot be changed; drop "
            "it, and create it with other SQL",
            table=schema.name,
        )


def _require_droppable(schema: TableSchema, name: str) -> None:
    uses = {"partition_by": schema.partition_by, "sort_by": schema.sort_by, "unique_key": schema.unique_key}
    for use, names in uses.items():
        if name in names:
            raise BadRequestError(
                f"column {name} of table {schema.name} cannot be dropped: {use} names it; create a table "
                "without it, and insert the rows there",
                column=name,
            )


def _require_unchecked(schema: TableSchema, changes: ColumnChanges) -> None:
    """Refuse to drop or rename a column that the SQL of a check names."""
    ids = {column.name: column.id for column in schema.columns}
    for name in (*changes.drop, *changes.rename):
        for check in schema.checks:
            if ids[name] in check.columns:
                raise BadRequestError(
                    f"column {name} of table {schema.name} cannot be dropped or renamed: check {check.name} "
                    f"names it ({check.sql}); take the check away before, or in the same change, and give it "
                    "anew later",
                    column=name,
                    check=check.name,
                )


def _require_not_read(schema: TableSchema, changes: ColumnChanges) -> None:
    """Refuse changes after which the SQL of a generated column would name, or make, something else."""
    for made in schema.generated:
        if _is_freed(made, changes):
            continue
        for column in schema.columns:
            read = column.id in made.reads
            renamed = read and column.name in (*changes.drop, *changes.rename)
            retyped = (read or column is made) and column.name in changes.types
            if (renamed or retyped) and made.name not in changes.drop:
                raise BadRequestError(
                    f"column {column.name} of table {schema.name} cannot be dropped, renamed, or given "
                    f"another type: generated column {made.name} is made by {made.generated}; drop that one, "
                    "or have rows bring its values (`generated`), before or in the same change",
                    column=column.name,
                )


def _is_freed(column: Column, changes: ColumnChanges) -> bool:
    """Return whether rows bring the values of a generated column from then on."""
    return changes.generated.get(column.name, "") is None


def _require_required(schema: TableSchema, changes: ColumnChanges, name: str) -> None:
    column = next((column for column in schema.columns if column.name == name), None)
    if column is None or column.nullable or name in changes.drop or list(changes.nullable).count(name) > 1:
        required = [column.name for column in schema.columns if not column.nullable]
        raise BadRequestError(
            f"{name} is no required column of table {schema.name} that can be made nullable; required are "
            f"{', '.join(required) or 'none'}: name each of them once",
            column=name,
        )


def _require_wider(schema: TableSchema, name: str, kind: str) -> None:
    column = next(column for column in schema.columns if column.name == name)
    to_arrow(kind)  # BadRequestError unless there is such a type
    if not is_wider(kind, column.type):
        raise BadRequestError(
            f"column {name} of table {schema.name} is {column.type}, which cannot become {kind}: a column "
            "gets a wider type of integers, double in place of float, or a decimal with no fewer digits on "
            "either side of the point; add a column of the other type, and fill it by an update",
            column=name,
        )
    if name in schema.partition_by and not kind.endswith("int"):
        raise BadRequestError(
            f"column {name} of table {schema.name} cannot become {kind}: the folders of its partitions have "
            "the texts of its values, which are others then; create a table with the other type, and insert "
            "the rows there",
            column=name,
        )


def _changed(column: Column, changes: ColumnChanges) -> Column:
    """Return a column under its new name, in its wider type; it may be null if it is to be.

    If it may be null, its values in the pages of earlier parts have no levels of definition. So these parts
    are other ones, whose row groups are never copied into a file of today, also if the name stays.
    """
    if _is_freed(column, changes):
        column = dataclasses.replace(column, generated=None, reads=())
    new, nullable = changes.rename.get(column.name, column.name), column.name in changes.nullable
    kind = changes.types.get(column.name, column.type)
    if new == column.name and kind == column.type and not nullable:
        return column
    was = (*column.was, FormerColumn(HERE, column.name, column.type))
    return dataclasses.replace(in_type(column, kind), name=new, was=was, nullable=column.nullable or nullable)


def in_type(column: Column, kind: str) -> Column:
    """Return a column in its type, or in a wider one."""
    initial = column.initial
    if initial is not None and kind != column.type:
        initial = widened(kind, column.type, bytes.fromhex(initial)).hex()
    return dataclasses.replace(column, type=kind, initial=initial)


def _with_sql(schema: TableSchema, changes: ColumnChanges, limits: ColumnLimits) -> list[Column]:
    """Return the columns to add, with the SQL of those that are generated."""
    found = {column.name: column for column in changes.add}
    for name, sql in changes.generated.items():
        if sql is None:
            if not any(column.name == name for column in schema.generated):
                made = ", ".join(column.name for column in schema.generated) or "none"
                raise BadRequestError(
                    f"{name} is no generated column of table {schema.name}; it has: {made}", column=name
                )
        elif name not in found:
            raise BadRequestError(
                f"column {name} of table {schema.name} cannot become generated: rows have brought its "
                "values; add another column",
                column=name,
            )
        else:
            require_sql(f"generated column {name}", sql, limits.check_bytes)
            found[name] = dataclasses.replace(found[name], generated=sql)
    return [*found.values()]


def _added(schema: TableSchema, column: Column, number: int) -> Column:
    if not column.nullable and not column.optional:
        raise BadRequestError(
            f"column {column.name} cannot be added to table {schema.name} as required: the rows that are "
            "there have no value of it; give it a default, have it generated, or leave out `not null`",
            column=column.name,
        )
    initial = None if column.default is None else plain_bytes(column.type, column.default).hex()
    number += schema.columns_made
    return dataclasses.replace(column, id=number, since=HERE, was=(), initial=initial)


def _with_defaults_and_comments(
    columns: Sequence[Column], changes: ColumnChanges, schema: TableSchema, limits: ColumnLimits
) -> list[Column]:
    """Return the columns with other defaults and comments."""
    known = {column.name: column for column in columns}
    for name in (*changes.default, *changes.comment):
        if name not in known:
            raise BadRequestError(
                f"table {schema.name} has no column {name}; its columns are {', '.join(known)}", column=name
            )
    for name, value in changes.default.items():
        if known[name].generated is not None:
            raise BadRequestError(
                f"column {name} of table {schema.name} is generated, so no row lacks a value of it; it has "
                "no default",
                column=name,
            )
        text = default_text(name, known[name].type, value, limits.default_bytes)
        known[name] = dataclasses.replace(known[name], default=text)
    for name, comment in changes.comment.items():
        known[name] = dataclasses.replace(known[name], comment=comment)
    return [*known.values()]


def _ordered(schema: TableSchema, columns: Sequence[Column], order: Sequence[str]) -> tuple[Column, ...]:
    by_name = {column.name: column for column in columns}
    for name in order:
        if name not in by_name or order.count(name) > 1:
            problem = "is named twice" if name in by_name else "is no column"
            raise BadRequestError(
                f"{name} {problem} in the new order of table {schema.name}, whose columns are "
                f"{', '.join(by_name)}",
                column=name,
            )
    return (*map(by_name.__getitem__, order), *(one for one in columns if one.name not in order))


def _properties(schema: TableSchema, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the properties, of which the unique key follows its columns to their new names."""
    found = dict(schema.properties)
    if any(name in rename for name in schema.unique_key):
        found["unique_key"] = join_list(rename.get(name, name) for name in schema.unique_key)
    return found
