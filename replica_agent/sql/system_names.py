"""The names of system tables in a statement of a user.

DuckDB has a catalog `system` of its own, so `system.parts` alone is ambiguous for it. The name of the
database in front makes it certain.
"""

from __future__ import annotations

import itertools

import duckdb
import msgspec

from tidelock.replica_agent.system_tables.registry import REFERENCE

#: The name of the database in memory, which no namespace of a user has.
_DATABASE = "memory"


class Named(msgspec.Struct, frozen=True):
    """A statement that the engine understands, and the system tables that it names."""

    sql: str
    tables: frozenset[str] = frozenset()


def named(sql: str) -> Named:
    """Return a statement with the database before each system table; texts and comments stay as they are."""
    source = sql.encode(errors="surrogatepass")
    if not REFERENCE.search(sql):
        return Named(sql)
    spans = _texts(sql, len(source))
    pieces, tables, end = [], set(), 0
    for match in REFERENCE.finditer(sql):
        begin = len(sql[: match.start()].encode(errors="surrogatepass"))
        if not any(first <= begin < last for first, last in spans):
            pieces += [sql[end : match.start()], f"{_DATABASE}."]
            tables.add(match[3].lower())
            end = match.start()
    return Named("".join([*pieces, sql[end:]]), frozenset(tables))


def _texts(sql: str, length: int) -> list[tuple[int, int]]:
    """Return the bytes of the texts and comments of a statement."""
    left_alone = {duckdb.token_type.string_const, duckdb.token_type.comment}
    tokens = [*duckdb.tokenize(sql), (length, duckdb.token_type.operator)]
    return [(begin, end) for (begin, kind), (end, _) in itertools.pairwise(tokens) if kind in left_alone]
