"""Definitions that no table can have, and tables that exist already: refused, and nothing enters the log."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.support.faults.refusals import (
    LIMITS,
    ROWS,
    SCHEMA,
    Addresses,
    Ground,
    check_message,
    command,
    http,
)
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    TableExistsError,
    TidelockError,
    TooLargeError,
    UnknownTableError,
    UnsupportedTypeError,
)
from tidelock.exits import Exit

NUMBERS = itertools.count(1)

#: Every family of types that a table cannot have, with the type to use instead.
UNSUPPORTED: list[tuple[pa.DataType, str]] = [
    (pa.duration("us"), "int64 (bigint) with microseconds"),
    (pa.month_day_nano_interval(), "int64 (bigint) with microseconds, or int32 (int) with months"),
    (pa.decimal256(40, 2), "decimal128 with 1 to 38 digits"),
    (pa.decimal128(9, -2), "decimal128 with 1 to 38 digits"),
    (pa.decimal128(9, 10), "decimal128 with 1 to 38 digits"),
    (pa.null(), "the type that the column will hold"),
    (pa.struct([]), "a struct with fields"),
    (pa.map_(pa.float32(), pa.int64()), "keys of another type"),
    (pa.dense_union([pa.field("a", pa.int64())]), "one column for each field, or string with JSON"),
    (pa.sparse_union([pa.field("a", pa.int64())]), "one column for each field, or string with JSON"),
    (pa.uuid(), "string, or the plain type of its values"),
    (pa.bool8(), "string, or the plain type of its values"),
    (pa.opaque(pa.int64(), "point", "somebody"), "string, or the plain type of its values"),
]


@pytest.fixture
def name() -> str:
    """A name that no table has."""
    return f"table_{next(NUMBERS)}"


@pytest.fixture
def unchanged(db: Database) -> Iterator[None]:
    """At the end of the test the log is as long as before it, so no table was made."""
    end = db.status()["end_csn"]
    yield
    assert db.status()["end_csn"] == end
    assert db.status()["open_transactions"] == 0


def refused(db: Database, error: type[TidelockError], *words: str, name: str, **definition: object) -> None:
    """Require that the creation of this table is refused."""
    schema = definition.pop("schema", SCHEMA)
    with pytest.raises(error) as caught:
        db.create_table(name, schema, **definition)  # type: ignore[arg-type]
    check_message(caught.value, error, words)
    assert not caught.value.retriable


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("unsupported", "use"), UNSUPPORTED, ids=[str(kind) for kind, _ in UNSUPPORTED])
def test_type_outside_the_closed_list(db: Database, name: str, unsupported: pa.DataType, use: str) -> None:
    """The message names the column, its type, and the type to use instead."""
    schema = pa.schema([("good", pa.int64()), ("bad", unsupported)])
    with pytest.raises(UnsupportedTypeError) as caught:
        db.create_table(name, schema)
    check_message(caught.value, UnsupportedTypeError, [f"column bad has type {unsupported}", f"use {use}"])
    assert caught.value.details["column"] == "bad"
    assert caught.value.details["use"].startswith(use)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("bad", "word"),
    [
        *((text, "is not a table name") for text in ("", "T", "a b", "a.b.c", ".a", "a.", "_a", "a-b", "ü")),
        *(
            (text, "is not a table name")
            for text in ("../a", "a/b", "a\0", '"a"', "a" * 129, "x." + "a" * 129)
        ),
        *(
            (f"{space}.a", "reserved for SQL")
            for space in ("information_schema", "pg_catalog", "system", "temp")
        ),
    ],
)
def test_name_that_no_table_can_have(db: Database, bad: str, word: str) -> None:
    """Names are [a-z0-9_] in one namespace; a name that SQL uses itself is refused with that reason."""
    refused(db, BadRequestError, word, name=bad)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("names", "word"),
    [
        ([""], "is empty"),
        *(([text], "a control character") for text in ("a\n", "\0", "a\x7f", "\x85", "\u2029")),
        *(([text], "the limit is 255 (column_name_bytes_max)") for text in ("a" * 256, "ü" * 128)),
        *(([text], "reserved for change feeds") for text in ("_change_type", "_commit_csn", "_commit_time")),
        (["a", "b", "a"], "has column a twice"),
        (["a", "A"], "has column a twice (ignoring case)"),
        (["STRASSE", "Straße"], "has column STRASSE twice (ignoring case)"),
        ([], "has no column"),
    ],
)
def test_columns_that_no_table_can_have(db: Database, name: str, names: list[str], word: str) -> None:
    """Every engine must be able to name a column, whether or not it distinguishes case."""
    schema = pa.schema([pa.field(column, pa.int64()) for column in names])
    refused(db, BadRequestError, word, name=name, schema=schema)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("definition", "word"),
    [
        ({"partition_by": ["colour"]}, "partition_by of table default.{name} names colour"),
        ({"partition_by": ["k", "k"]}, "names k twice"),
        ({"partition_by": SCHEMA.names}, "a file needs at least one"),
        ({"sort_by": ["colour"]}, "sort_by of table default.{name} names colour"),
        ({"sort_by": ["k"], "partition_by": ["k"]}, "leave it out"),
        ({"properties": {"colour": "red"}}, "known are comment, compaction"),
        ({"properties": {"compaction": "maybe"}}, "not on or off"),
    ],
)
def test_layout_that_makes_no_sense(
    db: Database, name: str, definition: dict[str, object], word: str
) -> None:
    """A table is partitioned and sorted by its own columns; unknown properties are refused."""
    refused(db, BadRequestError, word.format(name=name), name=name, **definition)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.binary(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")]
)
def test_type_that_makes_no_folder(db: Database, name: str, kind: pa.DataType) -> None:
    """A type whose values have no text that all readers agree on cannot name a partition."""
    schema = pa.schema([("k", pa.int64()), ("p", kind)])
    refused(db, BadRequestError, "cannot be partitioned by p", name=name, schema=schema, partition_by=["p"])


def test_too_many_columns_are_refused_at_the_set_bound(db: Database, name: str) -> None:
    """The configured bound holds; a table at the bound, with the longest names, can be made and read."""
    limit = LIMITS["columns_max"]
    fields = [(f"column_{number:04}_{'x' * 116}", pa.decimal128(38, 18)) for number in range(limit + 1)]
    refused(
        *(db, TooLargeError, f"would have {limit + 1} columns", f"the limit is {limit} (columns_max)"),
        "spread them over several tables",
        name=name,
        schema=pa.schema(fields),
    )
    made = db.create_table(name, pa.schema(fields[:limit]))
    assert len(db.table(name, csn=made["csn"])["columns"]) == limit
    assert db.read(name).num_rows == 0


@pytest.mark.parametrize("word", ["select", "order", "default.table", "0", "9_lives", "null", "a" * 128])
def test_odd_names_that_are_names(db: Database, word: str) -> None:
    """Keywords of SQL, digits and long names work everywhere: insert, read, SQL, snapshot path."""
    schema = pa.schema([(column, pa.int64()) for column in ("select", "0", "_x", "null", "b" * 128)])
    rows = pa.table({column: [1] for column in schema.names}, schema=schema)
    db.create_table(word, schema, partition_by=["select"])
    db.insert(word, rows)
    assert db.read(word, columns=["0", "select"], where='"select" = ?', params=[1]).num_rows == 1
    with db.snapshot() as snap:
        full = snap.table(word)["name"]
        quoted = ".".join(f'"{part}"' for part in full.split("."))
        assert snap.sql(f'SELECT "select", "_x" FROM {quoted}').num_rows == 1
        assert snap.path(word).endswith(f"/snapshots/{snap.csn}/{full.replace('.', '/')}")


def test_a_table_that_exists_is_refused_through_any_replica(ground: Ground) -> None:
    """A second table of the same name is refused, with any columns and through any replica."""
    with ground.refuses(TableExistsError, f"default.{ground.table} exists already", "choose another name"):
        ground.db.create_table(ground.table, SCHEMA)
    for replica in ground.cluster.replicas:
        with ground.cluster.connect(replica) as one, pytest.raises(TableExistsError):
            one.create_table(f"default.{ground.table}", pa.schema([("other", pa.string())]))
    assert [column["name"] for column in ground.db.table(ground.table)["columns"]] == SCHEMA.names
    ground.check_intact()


def test_replicas_that_create_the_same_table_at_once(limited: LocalCluster, db: Database, name: str) -> None:
    """Exactly one wins, and every replica has the winner's definition."""
    clients = [limited.connect(replica) for replica in limited.replicas]
    rounds = 5
    with ThreadPoolExecutor(len(clients)) as executor:
        for number in range(rounds):
            table = f"{name}_{number}"
            start = threading.Barrier(len(clients), timeout=60)

            def create(index: int, table: str = table, start: threading.Barrier = start) -> int | None:
                start.wait()
                try:
                    made = clients[index].create_table(table, pa.schema([(f"of_{index}", pa.int64())]))
                except TableExistsError:
                    return None
                return int(made["csn"])

            made = list(executor.map(create, range(len(clients))))
            winners = [index for index, csn in enumerate(made) if csn is not None]
            assert len(winners) == 1, made
            for client in clients:
                found = client.table(table, csn=max(filter(None, made)))
                assert [column["name"] for column in found["columns"]] == [f"of_{winners[0]}"]
    for client in clients:
        client.close()
    eventually(lambda: db.status()["open_transactions"] == 0)


@pytest.mark.slow
def test_definitions_by_the_command_line(ground: Ground) -> None:
    """A refused definition ends a command with the documented exit code and one line."""
    where = ("--data-dir", ground.cluster.folder)
    for arguments, code, word in (
        (("create-table", *where, ground.table, "k:bigint"), Exit.REFUSED, "exists already"),
        (("create-table", *where, "Orders", "k:bigint"), Exit.USAGE, "is not a table name"),
        (("create-table", *where, "t", "k:list"), Exit.USAGE, "is not a column type"),
        (("create-table", *where, "t", "k:bigint", "--partition-by", "p"), Exit.USAGE, "not a column"),
    ):
        done = command(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert word in " ".join(done.stderr.split())
    with pytest.raises(UnknownTableError):
        ground.db.table("t")
    ground.check_intact()


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"name": "t"}, ["with a schema, or with the columns and rows of a SELECT (sql); give one"]),
        ({"schema": ""}, ["missing required field `name`", "docs/openapi.json"]),
        ({"name": "t", "schema": "no base64!"}, ["not a base64 Arrow IPC schema message"]),
        ({"name": "t", "schema": "AAAA"}, ["not a base64 Arrow IPC schema message"]),
        ({"name": "t", "schema": "", "colour": 1}, ["unknown field `colour`"]),
        ({"name": 1, "schema": ""}, ["name is int, expected str"]),
    ],
)
def test_definition_that_is_none(limited: LocalCluster, body: object, words: list[str]) -> None:
    """A body of another form is refused; the error names the wrong field."""
    answer = http("POST", f"{Addresses.of(limited, 'r1').api}/tables", body)
    assert answer.status == 400
    check_message(answer.error, BadRequestError, words)


def test_an_empty_table_is_read_and_inserted_without_error(
    limited: LocalCluster, db: Database, name: str
) -> None:
    """An empty table is no error: each read returns the columns and no row, and an empty insert succeeds."""
    db.create_table(name, SCHEMA, partition_by=["name"])
    none = db.insert(name, ROWS.slice(0, 0))
    assert none.csn is None
    assert db.read(name).schema.names == SCHEMA.names
    with db.snapshot() as snap:
        assert snap.scan(name).count() == 0
        assert snap.sql(f"SELECT max(k) FROM {name}").column(0).to_pylist() == [None]
        folder = f"{Addresses.of(limited, snap.holder).data}/webhdfs/v1/snapshots/{snap.csn}/default/{name}"
        listed = http("GET", f"{folder}?op=LISTSTATUS").json["FileStatuses"]["FileStatus"]
        assert [entry["pathSuffix"] for entry in listed] == ["_common_metadata"]
