"""The definitions with which a commit makes, changes and drops tables (rule tables).

Each function looks at the tables as they are at one CSN, and returns all definitions of the commit: those of
other tables too, which name the table. The commit is refused if any table was defined since.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from tidelock.csnlog.core.ids import Csn, TableId
from tidelock.csnlog.core.model import ChangeTable, DefineTable
from tidelock.errors import BadRequestError, TableChangedError, TableExistsError, UnknownTableError
from tidelock.replica_agent.tables.column_changes import NO_CHANGES, ColumnChanges, changed, returned
from tidelock.replica_agent.tables.names import DEFAULT_NAMESPACE, is_namespace, require_no_other_meaning
from tidelock.replica_agent.tables.schema import LIMITS, ColumnLimits, TableSchema
from tidelock.wire.ids import TableName

#: The properties that a table may get or lose. The others decide which rows it takes, and those that it has.
CHANGEABLE: Final = frozenset({"comment", "compaction", "retention_s"})

#: Tables that an error names.
_SHOWN: Final = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Last:
    """The last definition of a table; of a dropped one, that of its end."""

    version: int
    schema: TableSchema


class KnownTables(Protocol):
    """The tables at one CSN, up to which everything is known."""

    def bearer(self, name: TableName) -> TableId | None:
        """Return the table that has a name, or None."""

    def last(self, table: TableId) -> Last | None:
        """Return the last definition of a table, of a dropped one too; None if the id was never given."""

    def missing(self, name: TableName) -> UnknownTableError:
        """Return the error about a name that no table has."""

    def names(self) -> Mapping[TableId, TableName]:
        """Return the names of all tables, without namespaces."""


class After:
    """The tables after definitions of the same commit.

    Args:
        tables: The tables before them.
        made: The definitions.
    """

    def __init__(self, tables: KnownTables, made: Sequence[DefineTable]) -> None:
        self._tables = tables
        self._made = {one.table: one for one in made}

    def bearer(self, name: TableName) -> TableId | None:
        """Return the table that has a name, or None."""
        for one in self._made.values():
            if one.definition["name"] == name and not one.drops:
                return one.table
        found = self._tables.bearer(name)
        return None if found in self._made else found

    def last(self, table: TableId) -> Last | None:
        """Return the last definition of a table."""
        if (made := self._made.get(table)) is None:
            return self._tables.last(table)
        return Last(made.version, TableSchema.from_definition(table, made.definition))

    def missing(self, name: TableName) -> UnknownTableError:
        """Return the error about a name that no table has."""
        return self._tables.missing(name)

    def names(self) -> Mapping[TableId, TableName]:
        """Return the names of all tables, without namespaces."""
        found = {table: name for table, name in self._tables.names().items() if table not in self._made}
        made = {one.table: TableName(one.definition["name"]) for one in self._made.values() if not one.drops}
        return found | {table: name for table, name in made.items() if not is_namespace(name)}


def joined(made: Sequence[DefineTable], more: Sequence[DefineTable]) -> list[DefineTable]:
    """Return all definitions of a transaction, without those of tables that it has created and dropped."""
    found = [*made, *more]
    created = {one.table for one in found if not one.version}
    never = {one.table for one in found if one.drops and one.table in created}
    return [one for one in found if one.table not in never]


def require_right(
    made: Sequence[DefineTable], used: Mapping[TableId, int], then: KnownTables, now: KnownTables
) -> None:
    """Raise an error unless definitions that were made at one CSN are right at a later one, too.

    They are if the tables that they change are unchanged, and the ids and names that they give are free.
    Whatever else was defined meanwhile does not matter.

    Args:
        made: The definitions of a transaction.
        used: The versions of the tables that the transaction has used or changes.
        then: The tables at the CSN that it reads at.
        now: The tables at the later CSN.

    Raises:
        TableChangedError: Another transaction has changed one of the tables.
        TableExistsError: Another transaction has given one of the names.
    """
    for table, version in used.items():
        last, before = now.last(table), then.last(table)
        assert last is not None, "an id that was given stays given"
        assert before is not None, "the transaction has seen it"
        if last.version != version:
            name = before.schema.name
            what = "changed" if now.bearer(name) == table else "dropped, or got another name,"
            raise TableChangedError(
                f"{_called(name)} was {what} after the snapshot of the transaction, which uses it; "
                "begin again",
                table=name,
            )
    mine = {one.table: one for one in made}
    for one in mine.values():
        name = TableName(one.definition["name"])
        bearer = None if one.drops else now.bearer(name)
        if one.drops and is_namespace(name):
            _require_empty(name, [other for table, other in now.names().items() if table not in mine])
        given = one.table not in used and now.last(one.table) is not None
        if given or (bearer is not None and bearer not in mine):
            raise TableExistsError(
                f"another transaction has created {_called(name)}, or given it that name, after the snapshot "
                "of this transaction; begin again, or choose another name",
                table=name,
            )


def _called(name: TableName) -> str:
    return f"namespace {name[:-1]}" if is_namespace(name) else f"table {name}"


def _require_empty(namespace: TableName, names: Iterable[TableName]) -> None:
    inside = sorted(name for name in names if name.startswith(namespace))
    if inside:
        raise TableExistsError(
            f"{_called(namespace)} cannot be dropped: table {inside[0]} came into it after the snapshot of "
            "the transaction; begin again",
            table=inside[0],
        )


def founding(namespace: TableName, properties: Mapping[str, str], tables: KnownTables) -> list[DefineTable]:
    """Return the definition of a namespace.

    Args:
        namespace: Its name, as of `namespace_key`.
        properties: Its properties.
        tables: The tables.

    Raises:
        BadRequestError: It is defined already, or a property is unknown.
    """
    name = namespace.removesuffix(".")
    if unknown := sorted(properties.keys() - {"comment"}):
        raise BadRequestError(
            f"namespace {name} has the unknown property {unknown[0]!r}; known is comment", property=unknown[0]
        )
    if tables.bearer(namespace) is not None:
        raise BadRequestError(f"namespace {name} exists already", namespace=name, exists=True)
    [made] = creating(TableSchema(TableId(namespace), namespace, (), properties=properties), tables)
    return [ChangeTable(made.table, made.version, made.definition)]


def clearing(namespace: TableName, tables: KnownTables, *, cascade: bool) -> list[DefineTable]:
    """Return the definitions that drop a namespace, with its tables if ``cascade`` says so.

    Raises:
        BadRequestError: There is none, or it is the default one; or tables are in it, and ``cascade`` is not
            given, or tables of other namespaces are derived from them.
    """
    name = namespace.removesuffix(".")
    if name == DEFAULT_NAMESPACE:
        raise BadRequestError(f"namespace {name} always exists; drop its tables", namespace=name)
    inside = sorted(table for table in tables.names().values() if table.startswith(namespace))
    defined = tables.bearer(namespace) is not None
    if not inside and not defined:
        raise BadRequestError(f"there is no namespace {name}", namespace=name, missing=True)
    if inside and not cascade:
        raise BadRequestError(
            f"namespace {name} has tables: {', '.join(inside[:_SHOWN])}; drop or rename them first, or drop "
            "it with them (cascade)",
            namespace=name,
        )
    made: list[DefineTable] = []
    while inside:
        now = After(tables, made)
        free = [table for table in inside if not _named(table, now).schema.dependents]
        made += dropping((free or inside)[0], now)  # tables that others are derived from come last
        inside.remove(free[0])
    return [*made, *(dropping(namespace, After(tables, made)) if defined else ())]


def replacing(schema: TableSchema, tables: KnownTables) -> list[DefineTable]:
    """Return the definitions that create a table in place of the one of its name, if there is one.

    The first one is that of the new table. Errors as :func:`dropping`.
    """
    if tables.bearer(schema.name) is None:
        return creating(schema, tables)
    gone = dropping(schema.name, tables)
    made, *others = creating(schema, After(tables, gone))
    return [made, *gone, *others]


def creating(schema: TableSchema, tables: KnownTables) -> list[DefineTable]:
    """Return the definitions that create a table, its own first; TableExistsError if its name is taken."""
    _require_free(schema.name, tables)
    table, number = TableId(schema.name), 1
    while tables.last(table) is not None:
        number += 1
        table = TableId(f"{schema.name}~{number}")
    kind = DefineTable if number == 1 and schema.is_plain else ChangeTable
    made = kind(table, 0, schema.definition())
    if schema.derivation is None:
        return [made]
    source = _last(schema.derivation.source, tables)
    return [made, _with_dependents(source, (*source.schema.dependents, table))]


def cloning(source: TableSchema, name: TableName, tables: KnownTables) -> list[DefineTable]:
    """Return the definition of a table that has all of another one but its name and its derived tables.

    Raises:
        TableExistsError: The name is taken.
    """
    alone = dataclasses.replace(source, name=name, derivation=None, dependents=())
    return creating(alone, tables)


def dropping(name: TableName, tables: KnownTables) -> list[DefineTable]:
    """Return the definitions that drop a table.

    Raises:
        UnknownTableError: There is no such table.
        BadRequestError: Other tables are derived from it.
    """
    found = _named(name, tables)
    if found.schema.dependents:
        names = ", ".join(_last(table, tables).schema.name for table in found.schema.dependents)
        raise BadRequestError(
            f"tables are derived from {name}, which its inserts fill: {names}; drop these first", table=name
        )
    gone = ChangeTable(found.schema.id, found.version + 1, {**found.schema.definition(), "dropped": True})
    if found.schema.derivation is None:
        return [gone]
    source = _last(found.schema.derivation.source, tables)
    return [
        gone,
        _with_dependents(source, tuple(one for one in source.schema.dependents if one != gone.table)),
    ]


def undropping(gone: DefineTable, to: TableName | None, tables: KnownTables) -> list[DefineTable]:
    """Return the definitions that bring a dropped table back, its own first.

    Args:
        gone: The definition that has dropped it.
        to: Its name from now on; None: the name that it had.
        tables: The tables.

    Raises:
        TableExistsError: The name is taken.
        BadRequestError: It was derived from a table that does not exist any more.
    """
    found = TableSchema.from_definition(gone.table, gone.definition)
    schema = dataclasses.replace(found, name=to or found.name)
    if tables.bearer(schema.name) is not None:
        raise TableExistsError(
            f"table {schema.name} exists, so {found.name} cannot come back under that name; give another one",
            table=schema.name,
        )
    back = ChangeTable(schema.id, gone.version + 1, schema.definition())
    if schema.derivation is None:
        return [back]
    source = _last(schema.derivation.source, tables)
    if tables.bearer(source.schema.name) != source.schema.id:
        raise BadRequestError(
            f"table {found.name} was derived from {source.schema.name}, which does not exist any more; bring "
            "that back first",
            table=source.schema.name,
        )
    return [back, _with_dependents(source, (*source.schema.dependents, schema.id))]


def altering(
    name: TableName,
    tables: KnownTables,
    *,
    to: TableName | None,
    properties: Mapping[str, str | None],
    columns: ColumnChanges = NO_CHANGES,
    limits: ColumnLimits = LIMITS,
) -> list[DefineTable]:
    """Return the definition of a table with another name, other properties or other columns.

    Args:
        name: Its name.
        tables: The tables.
        to: Its new name; None: it keeps its name.
        properties: New values of properties; None takes a property away.
        columns: Changes of its columns.
        limits: Limits of its columns.

    Raises:
        UnknownTableError: There is no such table.
        TableExistsError: The new name is taken.
        BadRequestError: A property is unknown, has a wrong value, or cannot be changed; or nothing changes.
        Others as :func:`changed`.
    """
    found = _named(name, tables)
    if fixed := sorted(properties.keys() - CHANGEABLE):
        raise BadRequestError(
            f"property {fixed[0]} of table {name} cannot be changed, as {', '.join(sorted(CHANGEABLE))} can: "
            "it decides which rows the table takes; create a table with it, and insert the rows there",
            property=fixed[0],
        )
    kept = {key: value for key, value in found.schema.properties.items() if key not in properties}
    given = {key: value for key, value in properties.items() if value is not None}
    schema = dataclasses.replace(found.schema, name=to or name, properties=kept | given)
    schema = changed(schema, columns, limits) if columns else schema
    if schema == found.schema:
        raise BadRequestError(
            f"the change of table {name} changes nothing; give another name, other values of properties, or "
            "other columns",
            table=name,
        )
    if schema.name != name:
        _require_free(schema.name, tables)
    if schema.name != name or schema.columns != found.schema.columns:
        return [ChangeTable(schema.id, found.version + 1, schema.definition())]
    return [DefineTable(schema.id, found.version + 1, schema.definition())]


def restoring(
    name: TableName, then: TableSchema, later: Sequence[tuple[Csn, TableSchema]], tables: KnownTables
) -> DefineTable:
    """Return the definition of a table with the columns that it had.

    Args:
        name: Its name.
        then: The definition that it had.
        later: Those that followed, each with its CSN: what parts of in between have, follows from them.
        tables: The tables.

    Raises:
        UnknownTableError: There is no such table.
    """
    found = _named(name, tables)
    schema = returned(found.schema, then, later)
    return ChangeTable(schema.id, found.version + 1, schema.definition())


def _require_free(name: TableName, tables: KnownTables) -> None:
    namespace = name.partition(".")[0]
    if not any(other.startswith(f"{namespace}.") for other in tables.names().values()):
        require_no_other_meaning(namespace)
    if tables.bearer(name) is not None:
        raise TableExistsError(f"table {name} exists already; use it, or choose another name", table=name)


def _named(name: TableName, tables: KnownTables) -> Last:
    table = tables.bearer(name)
    if table is None:
        raise tables.missing(name)
    return _last(table, tables)


def _last(table: TableId, tables: KnownTables) -> Last:
    found = tables.last(table)
    assert found is not None, f"{table} is named by another definition"
    return found


def _with_dependents(source: Last, dependents: tuple[TableId, ...]) -> DefineTable:
    followed = dataclasses.replace(source.schema, dependents=dependents)
    return DefineTable(source.schema.id, source.version + 1, followed.definition())
