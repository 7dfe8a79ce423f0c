"""Users' expressions inside the agent's statements: one expression each, which reads only rows of tables.

A predicate or a new value is put into a larger statement as text, so it must not be able to end the brackets
around it, add a clause or begin a second statement. It is parsed alone by DuckDB's own parser, which gives
its tree; the tree must be a single expression, and the names in it are checked. Settings, paths and secrets
of the process are not rows of tables: functions and views that show them are refused, although they could not
reach anything (:mod:`tidelock.replica_agent.sql.session`).
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import msgspec

from tidelock.column_names import by_same, same
from tidelock.errors import BadRequestError, SchemaMismatchError
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.wire.statements import Literal, Value

#: Functions that may be used in FROM: they make rows from their arguments.
_TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat_row", "unnest"})
#: Functions that show the process, act on it, or only wait.
_REFUSED = frozenset(
    {
        *("current_query", "current_setting", "getenv", "getvariable", "in_search_path", "which_secret"),
        *("currval", "nextval", "json_deserialize_sql", "json_serialize_sql", "write_log"),
        *("pg_sleep", "sleep_ms"),
    }
)
#: Names of SQL for the time and the user, which are no functions of the engine.
_CLOCKS = frozenset(
    {
        *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
        *("current_localtime", "current_localtimestamp"),
        *("current_catalog", "current_role", "current_user", "session_user", "user", "version"),
    }
)
_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_SYSTEM_SCHEMAS = frozenset({"information_schema", "pg_catalog"})
_SYSTEM_CATALOGS = frozenset({"system", "temp"})
_SYSTEM_VIEWS = ("duckdb_", "pg_", "pragma_", "sqlite_")
#: Items that may be used in FROM, by their names in the parser's tree.
_FROM = frozenset({"BASE_TABLE", "EMPTY", "EXPRESSION_LIST", "JOIN", "SUBQUERY", "TABLE_FUNCTION"})
_NO_CLAUSE: dict[str, Any] = {
    "modifiers": [],
    "where_clause": None,
    "group_expressions": [],
    "having": None,
    "sample": None,
    "qualify": None,
}


class Expression(msgspec.Struct, frozen=True):
    """An expression that was checked.

    Attributes:
        text: Its SQL on separate lines; parameters are ``$n``, n counted over the whole statement.
        params: The numbers of its parameters.
    """

    text: str
    params: frozenset[int]


class RowExpression(Expression, frozen=True):
    """An expression whose value depends on one row alone.

    Attributes:
        columns: The names of the columns that it reads, in the order of the table.
    """

    columns: tuple[str, ...]


class Expressions:
    """The expressions of one statement, parsed in the order in which their ``?`` are counted.

    Args:
        connection: Any connection; only DuckDB's parser is run.
        params: Values of the parameters of all expressions.
        tables: Full names of the existing tables.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, params: Sequence[Any], tables: Collection[str]
    ) -> None:
        self._connection = connection
        self._params = params
        self._tables = tables
        self._counted = 0
        self._styles: set[str] = set()
        self._used: set[int] = set()

    def parse(self, text: str, what: str) -> Expression:
        """Check an expression.

        Args:
            text: SQL.
            what: Its purpose, e.g. ``where``; for messages.

        Raises:
            BadRequestError: It is not exactly one expression, or it has a forbidden name, or more parameters
                than were passed.
        """
        return self._numbered(text, self._checked_item(text, what), what)

    def _checked_item(self, text: str, what: str) -> dict[str, Any]:
        item = self._only_item(text, what)
        self._tree(f"SELECT (\n{text}\n)", what)  # a clause after the expression shows up in brackets
        problem = next((problem for node in _nodes(item) if (problem := self._refusal(node))), None)
        problem = problem or _star(item)
        if problem is not None:
            raise BadRequestError(f"{what} may use the tables of its snapshot and functions: {problem}")
        return item

    def parse_of_row(
        self, text: str, what: str, names: Sequence[str], *, is_value: bool = False
    ) -> RowExpression:
        """Check an expression that depends on the columns of one row alone.

        Args:
            text: SQL.
            what: Its purpose, for messages.
            names: The names of the columns.
            is_value: It is compared with what rows bring, byte by byte; so it has no collation.

        Raises:
            BadRequestError: As :meth:`parse`; or it has a subquery, or depends on the time, on chance or on
                the process.
        """
        item = self._checked_item(text, what)
        if is_value and any(node.get("class") == "COLLATE" for node in _nodes(item)):
            raise BadRequestError(
                f"{what} has a collation, by which other texts would be equal; leave it out"
            )
        known, unsteady = by_same(names), _unsteady()
        columns = set()
        for node, variables in _scoped(item):
            kind, called = node.get("class"), str(node.get("function_name", "")).lower()
            if kind == "SUBQUERY":
                raise BadRequestError(f"{what} depends on one row alone, and has no subquery: {_short(text)}")
            if kind == "FUNCTION" and (node.get("schema") or node.get("catalog")):
                raise BadRequestError(
                    f"{what} calls {called} behind a point; write {called}(...) with all of its arguments"
                )
            if kind == "COLUMN_REF" and (name := same(node["column_names"][0])) not in variables:
                if name in known:
                    columns.add(known[name])
                    continue
                called = name
                if called not in unsteady:
                    raise BadRequestError(
                        f"{what} names {node['column_names'][0]}, which is no column of the table; it has "
                        f"{', '.join(names)}, and they are named without their table"
                    )
            # The age of one instant is that of today.
            if called in unsteady or (called == "age" and len(_arguments(node)) == 1):
                raise BadRequestError(
                    f"{what} would be another one at another time or place: {called} does not depend on the "
                    "columns of the row; compare columns with each other, or with constants"
                )
        parsed = self._numbered(text, item, what)
        return RowExpression(parsed.text, parsed.params, tuple(name for name in names if name in columns))

    def new_values(self, table: TableSchema, given: Mapping[str, Value], what: str) -> dict[str, Expression]:
        """Check the new values of columns, and return them in the same order.

        Raises:
            SchemaMismatchError: A name is not a column of the table.
            BadRequestError: No new value is passed, or as :meth:`parse`.
        """
        if not given:
            raise BadRequestError(f"{what} names no column of table {table.name}")
        known = by_same(table.arrow.names)
        columns = {name: known.get(same(name)) for name in given}
        for name, column in columns.items():
            if column is None:
                raise SchemaMismatchError(
                    f"table {table.name} has no column {name}; it has {', '.join(table.arrow.names)}",
                    table=table.name,
                    column=name,
                )
        if len(set(columns.values())) < len(columns):
            raise BadRequestError(f"{what} names a column of table {table.name} twice: {', '.join(given)}")
        return {
            columns[name] or name: self.parse(value, f"the new value of {name}")
            if isinstance(value, str)
            else Expression(_constant(name, value), frozenset())
            for name, value in given.items()
        }

    def params(self, *expressions: Expression) -> dict[str, Any]:
        """Return the parameters of a statement that contains some of the expressions, by name."""
        numbers = {number for expression in expressions for number in expression.params}
        return {str(number): self._params[number - 1] for number in sorted(numbers)}

    def end(self) -> None:
        """Raise BadRequestError if the request has more parameters than the expressions use."""
        if len(self._used) < len(self._params):
            raise BadRequestError(
                f"{len(self._params)} parameters are given, the expressions use {len(self._used)} of them"
            )

    def _only_item(self, text: str, what: str) -> dict[str, Any]:
        statements = self._tree(f"SELECT\n{text}\n", what)
        node = statements[0]["node"] if len(statements) == 1 else {}
        items = node.get("select_list", [])
        plain = (
            node.get("type") == "SELECT_NODE"
            and len(items) == 1
            and not items[0].get("alias")
            and node["from_table"]["type"] == "EMPTY"
            and not node["cte_map"]["map"]
            and all(node.get(clause) == nothing for clause, nothing in _NO_CLAUSE.items())
        )
        if not plain:
            raise BadRequestError(f"{what} is one SQL expression; found more than that: {_short(text)}")
        item: dict[str, Any] = items[0]
        return item

    def _tree(self, sql: str, what: str) -> list[dict[str, Any]]:
        """Return the statements of a text as DuckDB's parser reads them."""
        try:
            [(tree,)] = self._connection.sql("SELECT json_serialize_sql($1)", params=[sql]).fetchall()
            parsed = json.loads(tree)
        except RecursionError:
            raise BadRequestError(f"{what} is nested too deeply; write it flatter") from None
        except (duckdb.Error, UnicodeError) as error:
            raise BadRequestError(f"{what} is not one SQL expression: {error}") from error
        if parsed["error"]:
            raise BadRequestError(f"{what} is not one SQL expression: {parsed['error_message'].strip()}")
        statements: list[dict[str, Any]] = parsed["statements"]
        return statements

    def _refusal(self, node: dict[str, Any]) -> str | None:
        """Return the error of one node of the tree, or None."""
        kind = str(node.get("type"))
        if "query_location" in node and "sample" in node and "alias" in node and kind not in _FROM:
            return f"{kind.lower().replace('_', ' ')} is no table"
        if kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name")).lower()
            return None if name in _TABLE_FUNCTIONS else f"table function {name} is not offered"
        if kind == "BASE_TABLE":
            return self._refused_table(node)
        name = str(node.get("function_name", "")).lower()
        return f"function {name} is not offered" if name in _REFUSED else None

    def _refused_table(self, node: dict[str, Any]) -> str | None:
        catalog, schema, name = (
            str(node[key]).lower() for key in ("catalog_name", "schema_name", "table_name")
        )
        known = f"{schema or 'default'}.{name}" in self._tables
        if catalog in _SYSTEM_CATALOGS or schema in _SYSTEM_SCHEMAS:
            return f"{catalog or schema} holds no tables of a snapshot"
        return f"{name} is no table" if name.startswith(_SYSTEM_VIEWS) and not known else None

    def _numbered(self, text: str, item: dict[str, Any], what: str) -> Expression:
        """Give each ``?`` its number in the whole statement; ``$n`` has it already."""
        source = text.encode()
        pieces, begin, numbers = [], 0, set()
        head = len("SELECT\n")
        found = [node for node in _nodes(item) if node.get("class") == "PARAMETER"]
        for node in sorted(found, key=lambda node: int(node["query_location"])):
            at, name = int(node["query_location"]) - head, str(node["identifier"])
            if not name.isdigit():
                raise BadRequestError(f"{what} has the parameter ${name}; write ? or $1, ...")
            style = "?" if source[at : at + 1] == b"?" else "$"
            self._styles.add(style)
            if len(self._styles) > 1:
                raise BadRequestError("a statement has ? or $1, ... for its parameters, not both")
            number = int(name)
            if style == "?":
                self._counted += 1
                number = self._counted
                pieces += [source[begin:at], f"${number} ".encode()]
                begin = at + 1
            if not 1 <= number <= len(self._params):
                raise BadRequestError(f"{what} has parameter {number}, but {len(self._params)} are given")
            numbers.add(number)
        self._used |= numbers
        joined = b"".join([*pieces, source[begin:]]).decode()
        # On separate lines, so that a comment in it ends before the bracket.
        return Expression(f"(\n{joined}\n)", frozenset(numbers))


@functools.cache
def _unsteady() -> frozenset[str]:
    """Return the functions whose values depend on more than their arguments, and the macros that call them.

    Some of them can be written without brackets, as columns are. They are those of the engine, and to list
    them takes longer than to judge the rows of most statements.
    """
    functions = "SELECT DISTINCT function_name, stability, macro_definition FROM duckdb_functions()"
    with duckdb.connect() as connection:
        rows = connection.execute(functions).fetchall()
    found = {name for name, stability, _ in rows if stability not in {"CONSISTENT", None}} | _CLOCKS
    macros = {name: set(_WORD.findall(text.lower())) for name, _, text in rows if text is not None}
    while more := {name for name, words in macros.items() if name not in found and words & found}:
        found |= more
    return frozenset(found)


def literal(value: bool | float | str | None) -> str:
    """Return a JSON value as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case str():
            return "'" + value.replace("'", "''") + "'"


def _constant(column: str, given: Literal) -> str:
    if not given.base64:
        return literal(given.value)
    try:
        data = base64.b64decode(str(given.value), validate=True)
    except ValueError as error:
        raise BadRequestError(
            f"the new value of {column} is not base64 text: {error}", column=column
        ) from error
    return f"from_base64('{base64.b64encode(data).decode()}')"


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a tree, from the top."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _arguments(function: dict[str, Any]) -> list[Any]:
    """Return the arguments of a function; versions of the engine have different names for them."""
    found: list[Any] = function.get("arguments") or function.get("children") or []
    return found


def _scoped(tree: Any) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield every object of a tree but those in subqueries, with the variables of the lambdas around it."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        value, variables = waiting.pop()
        if isinstance(value, list):
            waiting += [(one, variables) for one in value]
        elif isinstance(value, dict):
            yield value, variables
            if value.get("class") == "LAMBDA":
                names = (one["column_names"][0] for one in _nodes(value["lhs"]) if "column_names" in one)
                waiting.append((value["expr"], variables.union(map(same, names))))
            elif value.get("class") != "SUBQUERY":
                waiting += [(one, variables) for one in value.values()]


def _star(item: dict[str, Any]) -> str | None:
    """Return a text if an expression stands for several columns, which is refused outside of a subquery."""
    waiting: list[Any] = [item]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict) and value.get("class") != "SUBQUERY":
            if value.get("class") in {"STAR", "POSITIONAL_REFERENCE"}:
                return "name each column"
            waiting += value.values()
        elif isinstance(value, dict):
            waiting.append(value.get("child"))
    return None


def _short(text: str) -> str:
    shown = " ".join(text.split())
    return shown if len(shown) <= 80 else f"{shown[:77]}..."  # noqa: PLR2004 - enough to recognise it
