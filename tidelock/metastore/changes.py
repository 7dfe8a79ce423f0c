"""The calls of a Hive metastore that change something: transactions, rows and definitions by SQL.

``CREATE DATABASE tx_load7`` begins a transaction under the label ``load7``; its tables take rows by INSERT,
and its definitions change in it; ``ALTER DATABASE tx_load7 SET DBPROPERTIES (commit = 'yes')`` commits all
of that, and ``DROP DATABASE tx_load7`` rolls it back. Outside of a transaction namespaces and tables are
created. Hive's client repeats a call whose answer it has not got, so each may come twice.
"""

from __future__ import annotations

from typing import Any, Final

from tidelock.client import Database, Transaction
from tidelock.errors import BadRequestError, TableExistsError
from tidelock.metastore.definitions import added, created
from tidelock.metastore.idl import hive
from tidelock.metastore.names import DatabaseName, read_name
from tidelock.metastore.transactions import Transactions
from tidelock.partition_paths import NULL_TEXT

#: The calls.
CHANGES: Final = (
    "create_database",
    "alter_database",
    "drop_database",
    "create_table",
    "create_table_with_environment_context",
    "alter_table",
    "alter_table_with_environment_context",
    "drop_table",
    "drop_table_with_environment_context",
    "add_partitions_req",
    "alter_partitions",
    "drop_partition_with_environment_context",
)
#: The property that commits a transaction, and its values.
_COMMIT: Final = "commit"
_YES: Final = frozenset({"yes", "true", "1"})


class Changes:
    """The calls that change something, for one user.

    Args:
        db: The cluster.
        transactions: Those of all users.
        user: The user, as its client names it.
    """

    def __init__(self, db: Database, transactions: Transactions, user: str = "") -> None:
        self._db = db
        self._transactions = transactions
        self.user = user

    # -- databases -------------------------------------------------------------------------------------------

    def create_database(self, database: Any) -> None:
        """Begin a transaction, or create a namespace."""
        asked = read_name(database.name)
        if asked.label is None:
            self._require_namespace(asked, database.name, "CREATE DATABASE")
            self._db.create_namespace(asked.namespace, properties=_comment(database.description))
            return
        if self._transactions.begin(asked.label, self.user):
            raise hive.AlreadyExistsException(
                f"transaction {asked.label} is open, and has changes; go on with it, or DROP DATABASE it"
            )

    def alter_database(self, name: str, database: Any) -> None:
        """Commit a transaction."""
        asked, given = read_name(name), database.parameters or {}
        if asked.label is None or str(given.get(_COMMIT, "")).lower() not in _YES:
            raise hive.MetaException(
                "ALTER DATABASE commits a transaction, and nothing else: ALTER DATABASE tx_<label> SET "
                f"DBPROPERTIES ({_COMMIT} = 'yes')"
            )
        self._transactions.commit(asked.label, self.user)

    def drop_database(self, name: str, _delete: bool, _cascade: bool) -> None:
        """Roll a transaction back, or drop a namespace without tables."""
        asked = read_name(name)
        if asked.label is None:
            self._require_namespace(asked, name, "DROP DATABASE")
            self._db.drop_namespace(asked.namespace)
            return
        self._transactions.roll_back(asked.label, self.user)

    # -- tables ----------------------------------------------------------------------------------------------

    def create_table(self, table: Any) -> None:
        """Create a table, in a transaction or by itself."""
        asked = read_name(table.dbName)
        asks = created(table, f"{folder_of(asked)}/{table.tableName}")
        name = f"{asked.namespace}.{table.tableName}"
        given: dict[str, Any] = {"partition_by": asks.partition_by, "properties": asks.properties}
        try:
            if asked.label is None:
                self._require_namespace(asked, table.dbName, "CREATE TABLE")
                self._db.create_table(name, asks.columns, **given)
            else:
                self._tx(asked, "CREATE TABLE").create_table(name, asks.columns, **given)
        except TableExistsError as error:
            raise hive.AlreadyExistsException(error.message) from error

    def create_table_with_environment_context(self, table: Any, _context: Any) -> None:
        """As `create_table`."""
        self.create_table(table)

    def alter_table(self, database: str, name: str, table: Any) -> None:
        """Add columns or rename a table in a transaction; without such a change a job has ended well."""
        asked = read_name(database)
        tx = self._tx(asked, "ALTER TABLE")
        before = f"{asked.namespace}.{name.lower()}"
        there = read_name(table.dbName)
        after = f"{there.namespace}.{table.tableName.lower()}"
        if there.label != asked.label:
            raise BadRequestError(f"{after} is in another transaction than {before}", table=before)
        if after != before:
            tx.rename_table(before, after)
        elif (columns := added(tx.definition(before), table)).names:
            tx.alter_table(before, add=columns)
        else:
            # Spark sends statistics when an INSERT has ended well, and not when it has failed.
            tx.confirm(before)

    def alter_table_with_environment_context(
        self, database: str, name: str, table: Any, _context: Any
    ) -> None:
        """As `alter_table`."""
        self.alter_table(database, name, table)

    def drop_table(self, database: str, name: str, _delete: bool) -> None:
        """Drop a table in a transaction."""
        asked = read_name(database)
        self._tx(asked, "DROP TABLE").drop_table(f"{asked.namespace}.{name.lower()}")

    def drop_table_with_environment_context(
        self, database: str, name: str, delete: bool, _context: Any
    ) -> None:
        """As `drop_table`."""
        self.drop_table(database, name, delete)

    # -- partitions: Spark tells what it has written, which the agents know ----------------------------------

    def add_partitions_req(self, request: Any) -> Any:
        """Take note of partitions of a table in a transaction."""
        self._tx(read_name(request.dbName), "ALTER TABLE ADD PARTITION")
        return hive.AddPartitionsResult([])

    def alter_partitions(self, database: str, _name: str, _partitions: Any) -> None:
        """Take note of partitions of a table in a transaction."""
        self._tx(read_name(database), "ALTER TABLE PARTITION")

    def drop_partition_with_environment_context(
        self, database: str, name: str, values: list[str], _delete: bool, _context: Any
    ) -> bool:
        """Drop a partition of a table in a transaction."""
        asked = read_name(database)
        tx = self._tx(asked, "ALTER TABLE DROP PARTITION")
        table = f"{asked.namespace}.{name.lower()}"
        keys = tx.definition(table).partition_by
        texts = [None if text == NULL_TEXT else text for text in values]
        tx.drop_partition(table, dict(zip(keys, texts, strict=True)))
        return True

    # -- what is asked of a transaction ----------------------------------------------------------------------

    def state(self, asked: DatabaseName) -> dict[str, str]:
        """Return what is known of the transaction of a database; errors as of `Transactions.state`."""
        assert asked.label is not None
        return self._transactions.state(asked.label, self.user)

    def transaction(self, asked: DatabaseName) -> Transaction:
        """Return the open transaction of a database; errors as of `Transactions.get`."""
        return self._tx(asked, "INSERT INTO")

    def path(self, asked: DatabaseName, table: str) -> str:
        """Return the folder to which rows of a table are written; errors as of `Transactions.path`."""
        assert asked.label is not None
        return self._transactions.path(asked.label, self.user, table)

    def _tx(self, asked: DatabaseName, statement: str) -> Transaction:
        if asked.label is None:
            raise hive.MetaException(
                f"{statement} is for tables of a transaction: CREATE DATABASE tx_<label>, then "
                f"{statement} tx_<label>.<table>; or use tidelock.connect()"
            )
        return self._transactions.get(asked.label, self.user)

    @staticmethod
    def _require_namespace(asked: DatabaseName, name: str, statement: str) -> None:
        if asked.at is not None:
            raise hive.MetaException(f"{statement}: {name} is a namespace at a CSN, which never changes")


def folder_of(asked: DatabaseName) -> str:
    """Return the location of a database, in which no process can make a file.

    CREATE TABLE AS SELECT chooses a folder there, and writes to it before it calls: so it fails, and no table
    is created without its rows.
    """
    return f"file:/dev/null/tidelock/{asked.namespace}"


def _comment(text: str | None) -> dict[str, str]:
    return {"comment": text} if text else {}
