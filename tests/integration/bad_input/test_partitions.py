"""Partition values that are hostile to paths, URLs and SQL; values that are refused; very many parts."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.faults.refusals import Addresses, Ground, check_message, command, http
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import SchemaMismatchError, TidelockError, TooLargeError
from tidelock.exits import Exit

SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string())])

#: Texts that a layer between the client and the disk could misread.
HOSTILE: list[str | None] = [
    *("ü/ö", "日本", "😀", "e\u0301", "é", "\u202e", "ß", "İ", "\ufeff", "\u00a0"),
    *("a b", " x ", "\t", "a\nb", "\r\n", "\x01\x7f", "\0"),
    *("..", ".", "../../etc/passwd", "/", "//", "a\\b", "~", "CON", "_hidden", ".hidden", "_temporary"),
    *(
        "%",
        "%41",
        "%2F",
        "100%",
        "+",
        "a+b",
        "?op=DELETE",
        "#f",
        "&a=b",
        "a=b",
        "p=x",
        ";",
        ":",
        "*",
        "|",
        "<>",
    ),
    *("'", '"', "''", "'; DROP TABLE t; --", "{}", "{a,b}", "[0-9]", "^", "$HOME", "`id`"),
    *("null", "NULL", "None", "nan", "true", "007", "1e3", "2024-01-01", "0x10", "-0"),
    *("x" * 200, "ü" * 100),
    None,
]


@pytest.fixture(scope="module")
def hostile(db: Database) -> str:
    """A table with one row of each hostile value, in parts of their own; its name."""
    db.create_table("hostile", SCHEMA, partition_by=["p"])
    db.insert("hostile", pa.table({"k": range(len(HOSTILE)), "p": HOSTILE}, schema=SCHEMA), wait="all")
    return "hostile"


def test_values_come_back_through_the_client(limited: LocalCluster, hostile: str, db: Database) -> None:
    """Every replica returns the inserted values, in whole scans and by condition; null is not a text."""
    for replica in limited.replicas:
        with limited.connect(replica) as one:
            rows = one.read(hostile).sort_by("k")
            assert rows.column("p").to_pylist() == HOSTILE, replica
    for number, value in enumerate(HOSTILE):
        condition, params = ("p IS NULL", []) if value is None else ("p = ?", [value])
        found = db.read(hostile, columns=["k"], where=condition, params=params)
        assert found.column("k").to_pylist() == [number], repr(value)


@pytest.mark.slow
def test_values_come_back_through_sql(hostile: str, db: Database) -> None:
    """SQL compares, groups and joins by these values, also when a value is written in the statement."""
    with db.snapshot() as snap:
        grouped = snap.sql(f"SELECT p, count(*) AS n, min(k) AS k FROM {hostile} GROUP BY p ORDER BY k")
        assert grouped.column("p").to_pylist() == HOSTILE
        assert grouped.column("n").to_pylist() == [1] * len(HOSTILE)
        for number, value in enumerate(HOSTILE):
            if value is not None and "\0" not in value:
                literal = value.replace("'", "''")
                found = snap.sql(f"SELECT k FROM {hostile} WHERE p = '{literal}'")
                assert found.column("k").to_pylist() == [number], repr(value)


@pytest.mark.parametrize("replica", ["r1", "r2"])
def test_parts_come_back_over_http(limited: LocalCluster, hostile: str, db: Database, replica: str) -> None:
    """Each listed part is served under its path, by plain HTTP and by WebHDFS, with its own row."""
    at = Addresses.of(limited, replica)
    with db.snapshot() as snap:
        parts = http("GET", f"{at.api}/parts?csn={snap.csn}&table={hostile}").json
        assert len(parts) == len(HOSTILE)
        seen = set()
        for part in parts:
            path = f"snapshots/{snap.csn}/{quote(part['file'])}"
            plain = http("GET", f"{at.data}/{path}")
            hadoop = http("GET", f"{at.data}/webhdfs/v1/{path}?op=OPEN")
            assert (plain.status, hadoop.status) == (200, 200), part["path"]
            assert plain.data == hadoop.data
            rows = pq.ParquetFile(io.BytesIO(plain.data)).read()
            (number,) = rows.column("k").to_pylist()
            seen.add(number)
            folder = f"snapshots/{snap.csn}/default/{hostile}/{quote(part['path'])}"
            listed = http("GET", f"{at.data}/webhdfs/v1/{folder}?op=LISTSTATUS")
            names = [entry["pathSuffix"] for entry in listed.json["FileStatuses"]["FileStatus"]]
            assert names == [f"{part['part']}.parquet"], part["path"]
        assert seen == set(range(len(HOSTILE)))


def test_values_by_the_command_line(limited: LocalCluster, hostile: str) -> None:
    """A terminal's encoding does not matter to what is printed as JSON."""
    query = f"SELECT k FROM {hostile} WHERE p IN ('日本', 'ü/ö', '%41') ORDER BY k"
    done = command("sql", "--data-dir", limited.folder, query, "--json", env={"LC_ALL": "C.UTF-8"})
    assert done.returncode == Exit.OK, done.stderr
    for value in ("日本", "ü/ö", "%41"):
        assert str(HOSTILE.index(value)) in done.stdout


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (
            "",
            SchemaMismatchError,
            ["partition column p holds ''", "Spark reads as null", "give null or another"],
        ),
        ("__HIVE_DEFAULT_PARTITION__", SchemaMismatchError, ["Spark reads as null"]),
        (
            "ü" * 130,
            TooLargeError,
            ["name of 262 bytes", "the limit is 255", "partition by something shorter"],
        ),
        ("/" * 90, TooLargeError, ["name of 272 bytes"]),
    ],
    ids=["empty", "the word for null", "long", "long when escaped"],
)
def test_values_that_make_no_folder(
    ground: Ground, value: str, error: type[TidelockError], words: list[str]
) -> None:
    """A value that reads as null, or that no file system takes, is refused, also far behind good ones."""
    table = f"{ground.table}_p"
    ground.db.create_table(table, SCHEMA, partition_by=["p"])
    rows = pa.table({"k": range(100), "p": ["good"] * 99 + [value]}, schema=SCHEMA)
    ground.refuses_statement(lambda tx: tx.insert(table, rows), error, *words)
    assert ground.db.read(table).num_rows == 0


def test_too_many_partitions_in_one_insert(ground: Ground) -> None:
    """The bound is named; the same rows go in when they come in several inserts."""
    table = f"{ground.table}_p"
    ground.db.create_table(table, SCHEMA, partition_by=["p"])
    rows = pa.table({"k": range(1001), "p": [f"p{number}" for number in range(1001)]}, schema=SCHEMA)
    error = ground.refuses_statement(
        lambda tx: tx.insert(table, rows),
        *(
            TooLargeError,
            "more than 1000 partitions",
            "partitions_per_insert_max",
            "insert them in several calls",
        ),
    )
    assert error.details == {"limit": 1000, "found": 1001}
    with ground.db.begin(fresh=True) as tx:
        tx.insert(table, rows.slice(0, 1000))
        tx.insert(table, rows.slice(1000))
    assert ground.db.read(table).num_rows == 1001


@pytest.mark.scenario("S11")
@pytest.mark.slow
def test_a_transaction_of_3000_parts(limited: LocalCluster, ground: Ground) -> None:
    """Entries that do not fit into a record go into a manifest: one CSN, all parts on all replicas."""
    table, inserts, each = f"{ground.table}_p", 3, 1000
    ground.db.create_table(table, SCHEMA, partition_by=["p"])
    with ground.db.begin(fresh=True) as tx:
        for number in range(inserts):
            values = [f"value_{number}_{index}" for index in range(each)]
            tx.insert(table, pa.table({"k": range(each), "p": values}, schema=SCHEMA))
        csn = tx.commit(wait="all").csn
    (record,) = ground.db.log(csn, limit=1)
    (entry,) = [item for item in record["tids"] if item["tid"] == tx.tid]
    assert entry["entries"] == []
    assert entry["manifest"]["entries"] == inserts * each
    assert entry["manifest"]["length"] > 256 << 10  # more than a whole record may have
    checksums: list[Any] = []
    for replica in limited.replicas:
        api = Addresses.of(limited, replica).api
        parts = http("GET", f"{api}/parts?csn={csn}&table={table}").json
        assert len(parts) == inserts * each
        checksums.append({part["part"]: part["checksum"] for part in parts})
        with limited.connect(replica) as one, one.snapshot(csn=csn) as snap:
            counted = snap.sql(f"SELECT count(*), count(DISTINCT p), sum(k) FROM {table}").to_pylist()[0]
            assert list(counted.values()) == [3000, 3000, inserts * sum(range(each))]
        before = http("GET", f"{api}/parts?csn={(csn or 0) - 1}&table={table}")
        assert before.json == []
    assert checksums[0] == checksums[1] == checksums[2]
    ground.check_intact()


def test_partitions_of_every_type(db: Database) -> None:
    """Dates, booleans, decimals and integers come back with their type and value, null among them."""
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("d", pa.date32()),
            ("b", pa.bool_()),
            ("n", pa.decimal128(5, 2)),
            ("i", pa.int8()),
        ]
    )
    rows = [
        {"k": 1, "d": dt.date(1, 1, 1), "b": True, "n": Decimal("-999.99"), "i": -128},
        {"k": 2, "d": dt.date(9999, 12, 31), "b": False, "n": Decimal("0.10"), "i": 0},
        {"k": 3, "d": None, "b": None, "n": None, "i": None},
    ]
    db.create_table("typed", schema, partition_by=["d", "b", "n", "i"])
    db.insert("typed", pa.Table.from_pylist(rows, schema))
    assert db.read("typed").sort_by("k").to_pylist() == rows
    assert db.read("typed", where="n = cast(? AS decimal(5, 2)) AND NOT b", params=["0.10"]).num_rows == 1


def test_message_of_a_refused_value_can_be_read(ground: Ground) -> None:
    """Control characters of a refused value do not reach a terminal as they are."""
    table = f"{ground.table}_p"
    ground.db.create_table(table, SCHEMA, partition_by=["p"])
    with pytest.raises(TooLargeError) as caught:
        ground.db.insert(table, pa.table({"k": [1], "p": ["\x1b[2J" * 100]}, schema=SCHEMA))
    check_message(caught.value, TooLargeError, ["the folder of partition column p"])
    assert caught.value.message.isprintable()
