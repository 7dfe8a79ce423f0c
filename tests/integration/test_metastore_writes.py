"""Transactions and definitions by name, as Hive's client asks for them; files are written by plain HTTP."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.spark.hdfs_client import Folder, parquet
from tests.support.spark.metastores import client_of, serving
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.metastore.calls import Calls
from tidelock.metastore.changes import Changes
from tidelock.metastore.idl import hive
from tidelock.metastore.snapshots import Snapshots
from tidelock.metastore.transactions import Transactions

NUMBERS: Final = itertools.count(1)
_PARQUET: Final = "org.apache.hadoop.hive.ql.io.parquet"


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas."""
    return module_cluster(replicas=2, settings=QUICK)


@pytest.fixture
def clients(local: LocalCluster) -> Iterator[Callable[..., Any]]:
    """A function that returns a client of a metastore of its own, which has a user."""
    opened: list[Any] = []

    def open_one(user: str = "me", **options: Any) -> Any:
        db = local.connect()
        snapshots, transactions = Snapshots(db), Transactions(db, **options)
        server = serving(Calls(snapshots, Changes(db, transactions)))
        connection = client_of(server.__enter__().port)
        client = connection.__enter__()
        client.set_ugi(user, [])
        opened.extend([connection, server])
        closed.extend([transactions.close, snapshots.close, db.close])
        return client

    closed: list[Callable[[], None]] = []
    yield open_one
    for one in opened:
        one.__exit__(None, None, None)
    for close in closed:
        close()
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))


@pytest.fixture
def client(clients: Callable[..., Any]) -> Any:
    """A client of a metastore."""
    return clients()


@pytest.fixture
def label() -> str:
    """A label that no other test uses."""
    return f"load{uuid.uuid4().hex[:8]}"


@pytest.fixture
def table(db: Database) -> str:
    """A table with a partition column, and one row."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, "v bigint, p string", partition_by=["p"])
    db.insert(name, pa.table({"v": [1], "p": ["a"]}))
    return name


def begin(client: Any, label: str) -> str:
    """Begin a transaction as CREATE DATABASE does; return the name of the database."""
    client.create_database(hive.Database(f"tx_{label}", "", "file:/x", {}, "", 1))
    return f"tx_{label}"


def commit(client: Any, name: str) -> None:
    """Commit as ALTER DATABASE does: with the properties that were there, and a new one."""
    there = client.get_database(name)
    client.alter_database(name, hive.Database(name, "", "", {**there.parameters, "commit": "yes"}, "", 1))


def folder(client: Any, database: str, table: str) -> Folder:
    """Return the folder to which rows are written."""
    return Folder(client.get_table(database, table).sd.location)


def write(into: Folder, value: int, partition: str = "b", *, mark: bool = True) -> None:
    """Write a row as a job of Spark does."""
    into.setup()
    files = {f"p={partition}": parquet(pa.table({"v": pa.array([value], pa.int64())}))}
    into.commit_task(into.write_task(files, job=str(uuid.uuid4())))
    if mark:
        assert into.commit_job().status == 201
    else:
        into.close_job()


def told(client: Any, database: str, table: str) -> None:
    """Send statistics, as Spark does when an INSERT has ended well."""
    known = client.get_table(database, table)
    known.parameters = {name: value for name, value in known.parameters.items() if "statistics" not in name}
    client.alter_table_with_environment_context(database, table, known, hive.EnvironmentContext({}))


def values(db: Database, table: str) -> list[int]:
    """Return the values of a table."""
    return sorted(db.read(table, ["v"])["v"].to_pylist())


def test_several_tables_are_written_in_one_transaction(
    client: Any, db: Database, table: str, label: str
) -> None:
    """They change at one CSN, under a label that counts once, and nothing is visible before."""
    other = f"{table}_other"
    db.create_table(other, "v bigint, p string", partition_by=["p"])
    name = begin(client, label)
    assert client.get_database(name).parameters["state"] == "open"
    assert set(client.get_tables(name, f"{table}*")) == {table, other}
    assert client.get_all_tables(name) == []
    for one in (table, other):
        shown = client.get_table(name, one)
        assert shown.tableType == "EXTERNAL_TABLE"
        assert shown.sd.serdeInfo.parameters["ignoremissingfiles"] == "false"
        write(folder(client, name, one), 7)
        told(client, name, one)
    assert values(db, table) == [1]
    commit(client, name)
    commit(client, name)  # Hive's client repeats a call whose answer it has not got
    assert values(db, table) == [1, 7]
    assert values(db, other) == [7]
    state = client.get_database(name).parameters
    assert state["state"] == "committed"
    assert int(state["csn"]) == db.label(label).csn  # type: ignore[union-attr]
    with pytest.raises(hive.MetaException, match="committed before, at CSN"):
        begin(client, label)
    with pytest.raises(hive.MetaException, match="nothing to roll back"):
        client.drop_database(name, True, False)
    with pytest.raises(hive.NoSuchObjectException, match="takes no more statements"):
        client.get_table(name, table)


def test_a_job_that_was_reported_as_failed_is_not_committed(
    client: Any, db: Database, table: str, label: str
) -> None:
    """Its rows are staged: the answer to its last request was lost."""
    name = begin(client, label)
    write(folder(client, name, table), 8)
    with pytest.raises(hive.MetaException, match="reported as failed"):
        commit(client, name)
    assert values(db, table) == [1]
    name = begin(client, label)  # the label is free again
    write(folder(client, name, table), 9)
    told(client, name, table)
    commit(client, name)
    assert values(db, table) == [1, 9]


def test_the_folder_of_a_table_is_listed_and_not_read(
    client: Any, db: Database, table: str, label: str
) -> None:
    """A reader finds one file, and is refused when it opens it: no rows would look like an empty table."""
    flat = f"{table}_flat"
    db.create_table(flat, "v bigint")
    name = begin(client, label)
    inner, root = folder(client, name, table), folder(client, name, flat)
    assert inner.names("") == ["p=__HIVE_DEFAULT_PARTITION__"]
    [file] = inner.names("p=__HIVE_DEFAULT_PARTITION__")
    assert root.names("") == [file]
    for into, place in ((inner, f"p=__HIVE_DEFAULT_PARTITION__/{file}"), (root, file)):
        for op in ("GETFILESTATUS", "OPEN"):
            assert "accepts writes only" in into.refusal("GET", op, place)
    assert inner.ask("GET", "LISTSTATUS", "p=x").status == 404
    for call in (client.get_partitions, client.get_partition_names):
        with pytest.raises(hive.MetaException, match="only written to"):
            call(name, table, -1)
    client.drop_database(name, True, True)
    with pytest.raises(hive.NoSuchObjectException):
        client.get_database(name)
    assert values(db, table) == [1]


def test_another_metastore_goes_on_with_a_transaction_of_its_user(
    clients: Callable[..., Any], db: Database, table: str, label: str
) -> None:
    """All that is known of it is at its home; a user does not see the transactions of another one."""
    first, second, stranger = clients(), clients(), clients("you")
    name = begin(first, label)
    write(folder(first, name, table), 5)
    told(second, name, table)
    for call in (stranger.get_database, lambda of: commit(stranger, of), lambda _: begin(stranger, label)):
        with pytest.raises(hive.MetaException, match="belongs to user 'me', and you are 'you'"):
            call(name)
    with pytest.raises(hive.AlreadyExistsException, match="has changes"):
        begin(second, label)
    commit(second, name)
    assert values(db, table) == [1, 5]
    assert first.get_database(name).parameters["state"] == "committed"


def test_transactions_end_that_nobody_asks_for(clients: Callable[..., Any], db: Database, label: str) -> None:
    """And there is a limit to how many are open."""
    now = [0.0]
    client = clients(idle_s=10, most=2, clock=lambda: now[0])
    names = [begin(client, f"{label}{number}") for number in range(2)]
    with pytest.raises(hive.MetaException, match="--transactions-max"):
        begin(client, f"{label}2")
    now[0] = 9.0
    assert client.get_database(names[1]).parameters["state"] == "open"
    now[0] = 11.0
    begin(client, f"{label}2")
    with pytest.raises(hive.NoSuchObjectException, match="was rolled back"):
        client.get_database(names[0])
    for name in (names[1], f"tx_{label}2"):
        client.drop_database(name, True, True)
    assert not [
        row for row in db.transactions() if (row.label or "").startswith(label) and row.state == "open"
    ]


def table_of(database: str, name: str, ddl: list[tuple[str, Any, bool]], **more: Any) -> Any:
    """Return a table as Spark sends it for CREATE TABLE ... USING parquet."""
    keys = more.pop("keys", [])
    fields = [
        {"name": one, "type": kind, "nullable": nullable, "metadata": more.get("metadata", {}).get(one, {})}
        for one, kind, nullable in ddl
    ]
    text = json.dumps({"type": "struct", "fields": fields})
    parameters = {
        "spark.sql.sources.provider": "parquet",
        "spark.sql.sources.schema.numParts": "2",
        "spark.sql.sources.schema.part.0": text[:20],
        "spark.sql.sources.schema.part.1": text[20:],
        "spark.sql.create.version": "4.3.0",
        **more.get("properties", {}),
    }
    if keys:
        parameters["spark.sql.sources.schema.numPartCols"] = str(len(keys))
        parameters |= {f"spark.sql.sources.schema.partCol.{place}": key for place, key in enumerate(keys)}
    storage = hive.StorageDescriptor(
        cols=[],
        location=more.get("location"),
        inputFormat=f"{_PARQUET}.MapredParquetInputFormat",
        numBuckets=-1,
    )
    kind = more.get("kind", "MANAGED_TABLE")
    return hive.Table(
        tableName=name, dbName=database, sd=storage, partitionKeys=[], parameters=parameters, tableType=kind
    )


def test_tables_are_created_and_changed_in_a_transaction(client: Any, db: Database, label: str) -> None:
    """With types, comments, defaults and properties; then a column more, another name, and rows."""
    made = f"made{next(NUMBERS)}"
    name = begin(client, label)
    struct = {
        "type": "struct",
        "fields": [{"name": "a b", "type": "long", "nullable": True, "metadata": {}}],
    }
    columns: list[tuple[str, Any, bool]] = [
        ("v", "long", False),
        ("w", "decimal(9,2)", True),
        ("s", struct, True),
        ("l", {"type": "array", "elementType": "integer", "containsNull": True}, True),
        ("p", "string", False),
    ]
    new = table_of(
        name, made, columns, keys=["p"], properties={"unique_key": "v,p", "transient_lastDdlTime": "7"},
        metadata={"w": {"CURRENT_DEFAULT": "1.50", "comment": "its worth"}},
    )  # fmt: skip
    client.create_table_with_environment_context(new, hive.EnvironmentContext({}))
    with pytest.raises(hive.AlreadyExistsException):
        client.create_table(new)
    wider = table_of(name, made, [*columns, ("x", "integer", True)], keys=["p"])
    client.alter_table(name, made, wider)
    renamed = table_of(name, f"{made}_2", [*columns, ("x", "integer", True)], keys=["p"])
    client.alter_table(name, made, renamed)
    assert not [one for one in db.tables() if one.name.startswith(f"default.{made}")]
    commit(client, name)
    found = db.table(f"{made}_2")
    assert [(one.name, one.type, one.nullable, one.default, one.comment) for one in found.columns] == [
        ("v", "bigint", False, None, None),
        ("w", "decimal(9,2)", True, "1.50", "its worth"),
        ("s", "struct<`a b`:bigint>", True, None, None),
        ("l", "array<int>", True, None, None),
        ("p", "string", False, None, None),
        ("x", "int", True, None, None),
    ]
    assert (found.partition_by, found.properties["unique_key"]) == (["p"], "v,p")
    name = begin(client, f"{label}b")
    client.drop_table(name, f"{made}_2", True)
    commit(client, name)
    assert f"default.{made}_2" not in {one.name for one in db.tables()}


def test_namespaces_and_tables_are_created_without_a_transaction(client: Any, db: Database) -> None:
    """Each is a commit of its own."""
    space, made = f"space{next(NUMBERS)}", f"made{next(NUMBERS)}"
    client.create_database(hive.Database(space, "for tests", "file:/x", {}, "", 1))
    assert space in client.get_all_databases()
    location = f"{client.get_database(space).locationUri}/{made}"
    client.create_table(table_of(space, made, [("v", "long", True)], location=location))
    assert client.get_table(space, made).tableType == "VIRTUAL_VIEW"
    assert [one.type for one in db.table(f"{space}.{made}").columns] == ["bigint"]
    with pytest.raises(hive.MetaException, match="for tables of a transaction"):
        client.drop_table(space, made, True)
    db.drop_table(f"{space}.{made}")
    client.drop_database(space, True, False)
    assert space not in client.get_all_databases()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"properties": {"spark.sql.sources.provider": "orc"}}, "write USING parquet"),
        ({"location": "hdfs://elsewhere/t"}, "leave LOCATION out"),
        ({"kind": "EXTERNAL_TABLE"}, "leave LOCATION out"),
        ({"metadata": {"v": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}}}, "make it string"),
        ({"metadata": {"v": {"GENERATION_EXPRESSION": "1"}}}, "is generated"),
        ({"properties": {"unknown": "x"}}, "unknown"),
    ],
)
def test_a_table_that_cannot_be_created_is_refused_with_the_way_that_works(
    client: Any, change: dict[str, Any], words: str
) -> None:
    """And nothing is created."""
    with pytest.raises(hive.MetaException, match=words):
        client.create_table(table_of("default", "refused", [("v", "string", True)], **change))


def test_other_changes_are_refused_with_the_way_that_works(
    client: Any, table: str, db: Database, label: str
) -> None:
    """Names with a CSN, properties of databases, other columns."""
    at = f"default_at_{db.seen_csn}"
    name = begin(client, label)
    there = client.get_table(name, table)
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("never changes", lambda: client.create_database(hive.Database(at, "", "", {}, "", 1))),
        ("never changes", lambda: client.drop_database(at, True, False)),
        ("never changes", lambda: client.create_table(table_of(at, "x", [("v", "long", True)]))),
        ("for tables of a transaction", lambda: client.alter_table(at, table, there)),
        (
            "commits a transaction",
            lambda: client.alter_database(name, hive.Database(name, "", "", {}, "", 1)),
        ),
        (
            "are missing",
            lambda: client.alter_table(name, table, table_of(name, table, [("v", "long", True)])),
        ),
        (
            "changes its type",
            lambda: client.alter_table(
                name,
                table,
                table_of(name, table, [("v", "integer", True), ("p", "string", True)], keys=["p"]),
            ),
        ),
    ]
    for words, call in refused:
        with pytest.raises(hive.MetaException, match=words):
            call()
    client.drop_database(name, True, True)
