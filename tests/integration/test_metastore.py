"""Tables by name: the metastore's answers, as Hive's client gets them, on a real cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest
from thriftpy2.transport import TTransportException
from typer.testing import CliRunner

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.spark.metastores import client_of, serving
from tests.support.waiting import eventually
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.exits import Exit
from tidelock.metastore.calls import Calls
from tidelock.metastore.changes import CHANGES
from tidelock.metastore.idl import hive
from tidelock.metastore.server import MetastoreServer
from tidelock.metastore.snapshots import Snapshots
from tidelock.partition_paths import NULL_TEXT

NUMBERS: Final = itertools.count(1)


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Two replicas."""
    return module_cluster(replicas=2, settings=QUICK)


@pytest.fixture
def snapshots(db: Database) -> Iterator[Snapshots]:
    """Return the snapshots of the cluster."""
    made = Snapshots(db)
    yield made
    made.close()


@pytest.fixture
def server(snapshots: Snapshots) -> Iterator[MetastoreServer]:
    """A metastore."""
    with serving(Calls(snapshots)) as made:
        yield made


@pytest.fixture
def client(server: MetastoreServer) -> Iterator[Any]:
    """A client of the metastore."""
    with client_of(server.port) as made:
        yield made


@pytest.fixture
def table(db: Database) -> str:
    """A table with two partition columns, and a row in each of four partitions."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, "p string, v bigint not null, y int, `Größe` string", partition_by=["p", "y"])
    rows = {"p": ["007", "a/b=c %ü", None, "7"], "v": [1, 2, 3, 4], "y": [1995, 1995, 1996, None]}
    db.insert(name, pa.table({**rows, "Größe": ["x"] * 4}))
    return name


def at(db: Database) -> str:
    """The database of the newest CSN."""
    return f"default_at_{db.seen_csn}"


def test_namespaces_and_tables_are_listed(client: Any, db: Database, table: str) -> None:
    """Those at a CSN are found when they are asked for, and not listed."""
    db.create_table(f"sales.{table}", {"k": "bigint"})
    listed = client.get_all_databases()
    assert {"default", "sales", "tidelock"} <= set(listed)
    assert not [name for name in listed if "_at_" in name]
    assert client.get_databases("sal*") == ["sales"]
    assert client.get_tables("sales", "*") == [table]
    assert client.get_all_tables("tidelock") == ["now"]
    assert table in client.get_tables(at(db), f"{table}|none")
    [meta] = client.get_table_meta("sales", table, ["VIRTUAL_VIEW"])
    assert (meta.dbName, meta.tableName, meta.tableType) == ("sales", table, "VIRTUAL_VIEW")
    found = client.get_database(at(db))
    assert found.parameters == {"csn": str(db.seen_csn)}
    assert found.locationUri.startswith("file:/dev/null/")  # no process can make a file there


def test_a_name_with_a_csn_is_a_table_that_never_changes(client: Any, db: Database, table: str) -> None:
    """With its own schema, statistics, route to the replicas and safety options; partition columns last."""
    name = at(db)
    first = client.get_table(name, table)
    db.insert(table, pa.table({"p": ["n"], "v": [5], "y": [1], "Größe": ["y"]}))
    assert client.get_table(name.upper(), table.upper()) == first
    assert first.tableType == "EXTERNAL_TABLE"
    schema = json.loads(first.parameters["spark.sql.sources.schema"])
    assert [one["name"] for one in schema["fields"]] == ["v", "Größe", "p", "y"]
    assert [key.name for key in first.partitionKeys] == ["p", "y"]
    assert first.parameters["spark.sql.statistics.numRows"] == "4"
    options = first.sd.serdeInfo.parameters
    assert options["path"].endswith(f"/default/{table}")
    assert options["ignoremissingfiles"] == "false"
    assert options["dfs.nameservices"] in options["path"]
    assert client.get_table_req(hive.GetTableRequest(name, table)).table == first
    assert client.get_table_objects_by_name(name, [table, "none"]) == [first]


def test_a_name_without_a_csn_is_a_view_of_one(client: Any, db: Database, table: str) -> None:
    """Made at each look-up, with the columns in the order of the definition; of a tag likewise."""
    tagged = db.tag(f"q{table}").csn
    csn = db.insert(table, pa.table({"p": ["n"], "v": [5], "y": [1], "Größe": ["y"]})).csn
    columns = "`p`, `v`, `y`, `Größe`"
    newest, of_tag = client.get_table("default", table), client.get_table(f"default_at_q{table}", table)
    assert newest.tableType == of_tag.tableType == "VIRTUAL_VIEW"
    assert newest.viewExpandedText == f"SELECT {columns} FROM `default_at_{csn}`.`{table}`"
    assert of_tag.viewExpandedText == f"SELECT {columns} FROM `default_at_{tagged}`.`{table}`"
    now = client.get_table("tidelock", "now").viewExpandedText
    assert now == f"SELECT {csn}L AS csn, '_at_{csn}' AS suffix"


def test_partitions_are_those_of_the_csn(client: Any, db: Database, table: str) -> None:
    """By all calls that Spark makes for them, with the texts of their values."""
    name = at(db)
    texts = [[NULL_TEXT, "1996"], ["007", "1995"], ["7", NULL_TEXT], ["a/b=c %ü", "1995"]]
    db.insert(table, pa.table({"p": ["later"], "v": [5], "y": [1], "Größe": ["y"]}))
    every = client.get_partitions(name, table, -1)
    assert sorted(one.values for one in every) == sorted(texts)
    assert {one.parameters["numRows"] for one in every} == {"1"}
    assert client.get_partitions_with_auth(name, table, -1, "u", []) == every
    paths = client.get_partition_names(name, table, -1)
    assert [f"/{table}/{path}" for path in paths] == [
        one.sd.location[one.sd.location.index(f"/{table}/") :] for one in every
    ]
    assert client.get_partitions_by_names(name, table, paths[:2]) == every[:2]
    some = client.get_partitions_by_filter(name, table, 'p = "007" and y >= 1995', -1)
    assert [one.values for one in some] == [["007", "1995"]]
    assert client.get_partitions_ps_with_auth(name, table, ["", "1995"], -1, "u", []) == [
        one for one in every if one.values[1] == "1995"
    ]
    assert client.get_partition(name, table, ["7", NULL_TEXT]).values == ["7", NULL_TEXT]
    with pytest.raises(hive.NoSuchObjectException, match="no partition"):
        client.get_partition_with_auth(name, table, ["8", "1"], "u", [])


@pytest.mark.parametrize(
    ("call", "arguments", "error", "words"),
    [
        ("get_table", ("default", "none"), "NoSuchObjectException", "no table default.none at CSN"),
        ("get_database", ("none",), "NoSuchObjectException", "no namespace none"),
        ("get_table", ("default_at_99999999", "t"), "MetaException", "NoSuchCsnError.*the log ends at"),
        ("get_table", ("default_at_none", "t"), "MetaException", "UnknownTagError: there is no tag none"),
        ("get_function", ("default", "f"), "NoSuchObjectException", "no function"),
        (
            "get_partitions_by_expr",
            (hive.PartitionsByExprRequest("default", "t"),),
            "MetaException",
            "builtin",
        ),
    ],
    ids=["table", "namespace", "csn", "tag", "function", "expression"],
)
def test_what_is_not_there_is_told_with_its_reason(
    client: Any, call: str, arguments: tuple[Any, ...], error: str, words: str
) -> None:
    """The connection stays: Hive's client would repeat a call whose connection is lost."""
    with pytest.raises(getattr(hive, error)) as told:
        getattr(client, call)(*arguments)
    assert re.search(words, told.value.message), told.value.message
    assert client.get_config_value("any", "its default") == "its default"


@pytest.mark.parametrize("call", CHANGES)
def test_each_change_is_refused_with_the_way_that_works(client: Any, table: str, call: str) -> None:
    """Before anything is done, and with a declared error."""
    count = len(getattr(hive.ThriftHiveMetastore, f"{call}_args").thrift_spec)
    with pytest.raises(hive.MetaException) as told:
        getattr(client, call)(*[None] * count)
    assert f"({call})" in told.value.message
    assert "tidelock.spark.write" in told.value.message


def test_names_without_a_csn_can_be_refused(snapshots: Snapshots, db: Database, table: str) -> None:
    """The refusal says which name works now; that one, and the newest CSN, are told as ever."""
    with serving(Calls(snapshots, plain=False)) as server, client_of(server.port) as client:
        with pytest.raises(hive.MetaException) as told:
            client.get_table("default", table)
        assert f"USE default_at_{db.seen_csn}" in told.value.message
        assert client.get_table(at(db), table).tableName == table
        assert str(db.seen_csn) in client.get_table("tidelock", "now").viewExpandedText


def test_calls_that_change_nothing_are_answered(client: Any) -> None:
    """Spark makes some of them at its start."""
    assert client.set_ugi("me", ["us"]) == ["us"]
    assert client.get_all_functions().functions == []
    assert client.get_functions("default", "*") == []
    assert client.get_tables_by_type("tidelock", "*", "EXTERNAL_TABLE") == []


def test_a_pin_ends_when_nobody_asks_for_its_csn(db: Database, table: str) -> None:
    """It ends with the next question about another CSN, and all end with the metastore."""
    now = [0.0]
    snapshots = Snapshots(db, idle_s=10, clock=lambda: now[0])
    old = db.seen_csn
    pin = snapshots._at(old).snapshot
    now[0] = 9.0
    assert f"default.{table}" in snapshots.tables(old)
    newest = db.insert(table, pa.table({"p": ["n"], "v": [5], "y": [1], "Größe": ["y"]})).csn or 0
    now[0] = 18.0
    later = snapshots._at(newest).snapshot
    assert (pin.closed, later.closed) == (False, False)
    now[0] = 20.0
    assert snapshots.newest() == newest
    snapshots.tables(db.insert(table, pa.table({"p": ["n"], "v": [6], "y": [1], "Größe": ["y"]})).csn or 0)
    assert (pin.closed, later.closed) == (True, False)
    snapshots.close()
    assert later.closed


def test_one_connection_too_many_is_closed(snapshots: Snapshots) -> None:
    """The others go on; a place is free again when one leaves."""
    with serving(Calls(snapshots), connections_max=1) as server:
        with client_of(server.port) as first:
            assert "tidelock" in first.get_all_databases()
            with pytest.raises((TTransportException, OSError)), client_of(server.port) as second:
                second.get_all_databases()
            assert "tidelock" in first.get_all_databases()

        def again() -> bool:
            with contextlib.suppress(TTransportException, OSError), client_of(server.port) as third:
                return "tidelock" in third.get_all_databases()
            return False

        eventually(again)


def test_bytes_that_are_no_call_cost_their_connection_alone(server: MetastoreServer) -> None:
    """A browser, or a client of another protocol."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\xff" * 64)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1024):
            pass
    with client_of(server.port) as client:
        assert "tidelock" in client.get_all_databases()


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.OK)], ids=["SIGINT", "SIGTERM"]
)
def test_the_command_serves_until_it_is_ended(
    local: LocalCluster, db: Database, table: str, end: signal.Signals, code: Exit
) -> None:
    """It says where it listens; what it serves is what the options say."""
    words = ["metastore", "--url", local.url("r2"), "--port", "0", "--read-from", "r2"]
    command = [sys.executable, "-m", "tidelock.cli", *words, "--partitions", "catalog", "--plain", "refuse"]
    command += ["--connections-max", "1", "--keep-s", "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = process.stdout.readline()
        port = int(told.rstrip().rpartition(":")[2])
        with client_of(port) as client:
            found = client.get_table(at(db), table)
            with pytest.raises(hive.MetaException, match="--plain refuse"):
                client.get_table("default", table)
            with pytest.raises((TTransportException, OSError)), client_of(port) as second:
                second.get_all_functions()
        process.send_signal(end)
        assert process.wait(20) == code
    assert found.parameters["spark.sql.partitionProvider"] == "catalog"
    assert found.sd.location == f"webhdfs://tidelock/snapshots/{db.seen_csn}/default/{table}"
    options = found.sd.serdeInfo.parameters
    assert options["dfs.ha.namenodes.tidelock"].startswith("r2,")


def test_the_settings_of_spark_are_printed(local: LocalCluster) -> None:
    """All that a process needs to reach the replicas under the name that tables of the catalog have."""
    shown = ["spark-defaults", "--url", local.url("r1"), "--metastore", "thrift://a:1,thrift://b:2"]
    done = CliRunner().invoke(cli.app, [*shown, "--read-from", "r2"])
    assert done.exit_code == 0, done.output
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert lines["spark.sql.catalogImplementation"] == "hive"
    assert lines["spark.hadoop.hive.metastore.uris"] == "thrift://a:1,thrift://b:2"
    assert lines["spark.hadoop.dfs.nameservices"] == "tidelock"
    names = lines["spark.hadoop.dfs.ha.namenodes.tidelock"].split(",")
    assert names[0] == "r2"
    assert all(f"spark.hadoop.dfs.namenode.http-address.tidelock.{name}" in lines for name in names)


def test_a_wrong_replica_is_refused_at_the_start(local: LocalCluster) -> None:
    """Before anything listens."""
    words = ["metastore", "--url", local.url("r1"), "--port", "0", "--read-from", "r9"]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == Exit.USAGE, done.output
    assert "no replica 'r9'" in done.stderr


def test_a_package_that_is_not_installed_is_named(
    local: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the words that install it."""
    for name in [one for one in sys.modules if one.startswith(("thriftpy2", "tidelock.metastore"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "thriftpy2", None)
    done = CliRunner().invoke(cli.app, ["metastore", "--url", local.url("r1"), "--port", "0"])
    assert done.exit_code == Exit.USAGE, done.output
    assert "pip install 'tidelock[metastore]'" in done.stderr
