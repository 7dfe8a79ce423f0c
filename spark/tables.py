"""Choice of the tables of a snapshot that are attached, and the names of their views. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tidelock.errors import BadRequestError, UnknownTableError
from tidelock.wire.rows import Fields

DEFAULT_NAMESPACE = "default"

Definitions = Mapping[str, Fields]


def full_name(table: str) -> str:
    """Return ``namespace.table`` for a name with or without namespace."""
    return table if "." in table else f"{DEFAULT_NAMESPACE}.{table}"


def select(definitions: Definitions, wanted: Sequence[str] | None, csn: int) -> Definitions:
    """Return the definitions of the wanted tables, in the order of `wanted`; None = all.

    Raises:
        UnknownTableError: A table does not exist at the CSN.
    """
    if wanted is None:
        return definitions
    names = [full_name(table) for table in wanted]
    for name in names:
        if name not in definitions:
            known = ", ".join(definitions) or "none"
            raise UnknownTableError(
                f"there is no table {name} at CSN {csn}; existing tables: {known}", table=name
            )
    return {name: definitions[name] for name in names}


def view_names(tables: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the view of each table: its name, preceded by the namespace if that is not the default one.

    Raises:
        BadRequestError: Two tables would have the same view.
    """
    views: dict[str, str] = {}
    taken: dict[str, str] = {}
    for table in tables:
        namespace, _, name = table.rpartition(".")
        view = prefix + (name if namespace == DEFAULT_NAMESPACE else f"{namespace}_{name}")
        if view in taken:
            raise BadRequestError(
                f"tables {taken[view]} and {table} would both be the view {view}; attach them separately "
                "(tables=)"
            )
        views[table] = view
        taken[view] = table
    return views
