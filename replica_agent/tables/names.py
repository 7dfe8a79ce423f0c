"""Names of tables: as clients write them, as the catalog keeps them, and the error about an unknown one.

Reader processes import this module. It needs no pyarrow, and its hundred megabytes stay out of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from tidelock.csnlog.core.ids import Csn
from tidelock.errors import BadRequestError, UnknownTableError
from tidelock.wire.ids import TableName

DEFAULT_NAMESPACE = "default"
#: The namespace of system tables; no table of a user is in it.
SYSTEM_NAMESPACE = "system"
# A leading underscore would hide the folder from Spark, which silently ignores such paths.
_TABLE = re.compile(r"[a-z0-9][a-z0-9_]{0,127}")
#: Names that mean something else in SQL over a snapshot.
_NO_NAMESPACE = frozenset({"information_schema", "memory", "pg_catalog", SYSTEM_NAMESPACE, "temp"})
#: Names of namespaces that mean something else where Spark finds tables by name (`tidelock metastore`).
_OF_SPARK_SQL = re.compile(r"tidelock|tx_.*|.*_tx_.*|.*_at_[0-9]+")
#: Largest number of tables whose names are compared with a wrong one. The event loop does it: 10 ms.
_COMPARED_MAX = 200


def no_table(name: str, at: Csn, known: Iterable[str]) -> UnknownTableError:
    """Return the error about a table that does not exist at a CSN.

    The error names the table of the same name in another namespace. If there is none, it names the most
    similar one, unless there are too many to compare.
    """
    names, bare = list(known), name.rpartition(".")[2]
    near = [one for one in names if one.rpartition(".")[2] == bare]
    if not near and len(names) <= _COMPARED_MAX:
        near = difflib.get_close_matches(name, names, 1, 0.7)
    hint = f"did you mean {near[0]}?" if near else "`tidelock tables` lists them;"
    return UnknownTableError(
        f"there is no table {name} at CSN {at}; {hint} a newer snapshot may know more", table=name, csn=at
    )


def full_name(name: str) -> TableName:
    """Return ``namespace.table`` for a name with or without namespace; BadRequestError if it is malformed."""
    namespace, dot, table = name.rpartition(".")
    if not dot:
        namespace = DEFAULT_NAMESPACE
    if not (_TABLE.fullmatch(namespace) and _TABLE.fullmatch(table)):
        raise BadRequestError(
            f"{name!r} is not a table name; expected `table` or `namespace.table`, each of a-z, 0-9 and _ "
            "(at most 128 characters, the first no _)",
            table=name,
        )
    if namespace in _NO_NAMESPACE:
        raise BadRequestError(_reserved(namespace), table=name)
    return TableName(f"{namespace}.{table}")


def require_no_other_meaning(namespace: str) -> None:
    """Raise BadRequestError for the name of a new namespace that means something else to Spark SQL."""
    if _OF_SPARK_SQL.fullmatch(namespace):
        raise BadRequestError(
            f"a new namespace cannot be {namespace}: names with `_at_` and a number are CSNs in Spark SQL, "
            "those with `tx_` are transactions, and `tidelock` tells of the cluster; choose another",
            namespace=namespace,
        )


def _reserved(namespace: str) -> str:
    if namespace == SYSTEM_NAMESPACE:
        return "namespace system is reserved for SQL: its tables are read, and never written; choose another"
    return f"namespace {namespace} is reserved for SQL; choose another"


def is_system_table(name: str) -> bool:
    """Return whether a name is in the namespace of system tables, which exists for queries only."""
    return name.lower().startswith(f"{SYSTEM_NAMESPACE}.")


def namespace_key(namespace: str) -> TableName:
    """Return the name under which a namespace is defined: no table can have it.

    Raises:
        BadRequestError: It is no name of a namespace.
    """
    return TableName(full_name(f"{namespace}.t").removesuffix("t"))


def is_namespace(name: str) -> bool:
    """Return whether a defined name is that of a namespace."""
    return name.endswith(".")


def name_in_sql(written: str) -> TableName:
    """Return the full name of a table as SQL writes it, in any case and perhaps in quotes."""
    plain = written.replace('"', "").lower()
    return TableName(plain if "." in plain else f"{DEFAULT_NAMESPACE}.{plain}")
