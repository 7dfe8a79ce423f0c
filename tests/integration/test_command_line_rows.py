"""Rows by the command line: from Parquet, CSV and JSON, from standard input, and changed in place."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tidelock.cli import app as cli
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.exits import Exit

NUMBERS = itertools.count(1)
COLUMNS = (
    "k bigint not null, name string, price decimal(9,2), day date, clock time, at timestamp, on_sale boolean"
)
CSV = (
    b"k,name,price,day,clock,at,on_sale\n"
    b'1,"a, ""b""\nc",1.25,2026-11-27,12:30:00.5,2026-11-27T12:00:00Z,true\n2,007,,,,,\n'
)
JSON_LINES = (
    b'{"k": 1, "name": "a, \\"b\\"\\nc", "price": 1.25, "day": "2026-11-27", "clock": "12:30:00.5", '
    b'"at": "2026-11-27T12:00:00Z", '
    b'"on_sale": true}\n{"k": 2, "name": "007"}\n'
)
Tidelock = Callable[..., Result]


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Two replicas; nothing is left over at the end."""
    made = module_cluster(replicas=2, settings=QUICK)
    yield made
    for replica in made.replicas:
        nothing_left(made.data_dir(replica))


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A client of the replica that the commands talk to."""
    with local.connect("r1") as found:
        yield found


@pytest.fixture
def tidelock(local: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tidelock:
    """Run a command in an empty folder; return its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDELOCK_URL", local.url("r1"))
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object, stdin: bytes = b"") -> Result:
        words = [*map(str, arguments), "--replica", "r1"]
        return CliRunner().invoke(cli.app, words, input=stdin)

    return run


@pytest.fixture
def table(db: Database) -> str:
    """An empty table."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, COLUMNS)
    return name


def told(result: Result) -> Any:
    """Return the JSON of a command that has done its work."""
    assert result.exit_code == Exit.OK, result.output
    return json.loads(result.stdout)


def rows(db: Database, table: str) -> list[dict[str, Any]]:
    """Return the rows by key, with what other clients have committed; times as text."""
    with db.begin(fresh=True) as tx:
        found = tx.read(table).sort_by("k")
    index = found.column_names.index("at")
    return list(found.set_column(index, "at", found["at"].cast(pa.string())).to_pylist())


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.ndjson", "x.csv.gz", "x.JSON"])
def test_text_gets_the_types_of_the_table(db: Database, tidelock: Tidelock, table: str, name: str) -> None:
    """CSV and lines of JSON, packed or not, have the same rows; `007` in a column of text stays text."""
    data = CSV if "csv" in name else JSON_LINES
    Path(name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert told(tidelock("insert", table, name, "--json"))["rows"] == {table: 2}
    first, second = rows(db, table)
    assert (first["name"], str(first["price"]), str(first["day"])) == ('a, "b"\nc', "1.25", "2026-11-27")
    assert str(first["clock"]) == "12:30:00.500000"
    assert first["at"].startswith("2026-11-27 12:00:00")
    assert second == {"k": 2, "name": "007"} | dict.fromkeys(["price", "day", "clock", "at", "on_sale"])


@pytest.mark.parametrize(
    ("format_", "data"), [("csv", CSV), ("tsv", CSV.replace(b",", b"\t")), ("json", JSON_LINES)]
)
def test_rows_from_standard_input_have_a_named_format(
    db: Database, tidelock: Tidelock, table: str, format_: str, data: bytes
) -> None:
    """A dash is standard input, whose format is named; the tab-separated form has no commas of its own."""
    assert told(tidelock("insert", table, "-", "--format", format_, "--json", stdin=data))["rows"] == {
        table: 2
    }
    assert [row["k"] for row in rows(db, table)] == [1, 2]


def test_text_files_land_too(db: Database, tidelock: Tidelock) -> None:
    """A landing table takes them as it takes Parquet."""
    table = f"t{next(NUMBERS)}"
    db.create_table(table, COLUMNS, properties={"landing": "on"})
    Path("x.csv").write_bytes(CSV)
    assert told(tidelock("land", table, "x.csv", "x.csv", "--json"))["rows"] == 4


@pytest.mark.parametrize(
    ("data", "name", "text"),
    [
        (b"k,name\nx,a\n", "x.csv", "conversion error to int64"),
        (b"k,colour\n1,a\n", "x.csv", "column colour is not in the table"),
        (b"", "x.csv", "Empty CSV file"),
        (b'{"k": 1.5}\n', "x.json", "couldn't parse:1.5"),
        (b'{"k": 1, "day": "soon"}\n', "x.json", "'soon'"),
        (b'{"k": 1, "clock": "24:00"}\n', "x.json", "column clock"),
        (b'{"k": 1, "clock": "noon"}\n', "x.json", "expected a time of day such as 12:30:00.5, found 'noon'"),
        (b'{"name": "a"}\n', "x.json", "column k of table"),
        (b"[1]\n", "x.json", "cannot read x.json"),
        (b"k\n1\n", "x.parquet", "expected a Parquet file at x.parquet"),
    ],
)
def test_files_of_another_form_are_refused(
    db: Database, tidelock: Tidelock, table: str, data: bytes, name: str, text: str
) -> None:
    """The error names the file or the column; nothing is inserted."""
    Path(name).write_bytes(data)
    result = tidelock("insert", table, name)
    assert result.exit_code in {Exit.REFUSED, Exit.USAGE}, result.output
    assert text in " ".join(result.stderr.split())
    assert rows(db, table) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-"], "need --format"),
        (["-", "--format", "parquet"], "Parquet cannot be read from standard input"),
        (["a.csv", "b.json"], "expected files of one format, found csv, json"),
        (["missing.csv"], "there is no file missing.csv"),
        (["a.csv", "c.csv"], "expected the columns k in all files, found name"),
    ],
)
def test_files_that_cannot_be_read_together(
    tidelock: Tidelock, table: str, arguments: list[str], text: str
) -> None:
    """The error has the next step."""
    for name, data in (("a.csv", b"k\n1\n"), ("b.json", b'{"k": 1}\n'), ("c.csv", b"name\nx\n")):
        Path(name).write_bytes(data)
    result = tidelock("insert", table, *arguments)
    assert result.exit_code == Exit.USAGE, result.output
    assert text in " ".join(result.stderr.split())


def test_rows_are_changed_in_place(db: Database, tidelock: Tidelock, table: str) -> None:
    """delete, update, upsert, merge and truncate tell how many rows they have changed."""
    Path("x.csv").write_bytes(CSV)
    Path("y.csv").write_bytes(b"k,name,price,day,clock,at,on_sale\n2,two,,,,,\n3,three,,,,,\n")
    tidelock("insert", table, "x.csv")
    for words, expected in (
        (["update", table, "--set", "name=?", "--param", "one", "--where", "k = 1"], {"updated": 1}),
        (["delete", table, "--where", "k > ?", "--param", "99"], {}),
        (
            ["merge", table, "y.csv", "--on", "k", "--set", "name=source.name"],
            {"inserted": 1, "updated": 1},
        ),
        (
            ["merge", table, "y.csv", "--on", "k", "--delete-where", "target.k = 3", "--no-insert"],
            {"deleted": 1},
        ),
        (["upsert", table, "x.csv", "--on", "k"], {"updated": 2}),
        (["delete", table, "--where", "k = 1"], {"deleted": 1}),
        (["truncate", table], {"deleted": 1}),
    ):
        found = told(tidelock(*words, "--json"))["rows"]
        assert {name: count for name, count in found.items() if count} == expected, words
    assert rows(db, table) == []
    assert "rows: none changed; nothing to commit" in tidelock("truncate", table).stdout
    assert "rows: 2 inserted; at CSN" in tidelock("upsert", table, "x.csv", "--on", "k").stdout


def test_a_change_under_a_label_counts_once(db: Database, tidelock: Tidelock, table: str) -> None:
    """As an insert does."""
    Path("x.csv").write_bytes(CSV)
    tidelock("insert", table, "x.csv")
    words = ("delete", table, "--where", "k = 1", "--label", f"clean {table}", "--wait", "all", "--json")
    assert told(tidelock(*words))["rows"]["deleted"] == 1
    assert tidelock(*words).exit_code == Exit.REFUSED
    assert tidelock("delete", table, "--where", "k = 2", "--wait", "never").exit_code == Exit.USAGE
    assert tidelock("update", table, "--set", "nonsense").exit_code == Exit.USAGE
    assert [row["k"] for row in rows(db, table)] == [2]
