"""Rows: typed values of answers that read like the dicts of JSON that they were."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]
import pytest

from tidelock.client.values.results import TransactionAtHome
from tidelock.wire import cluster, log, members, rows, tables, transactions
from tidelock.wire.rows import Row, RowList, instant

MS = 1_700_000_000_123
TIME = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
TABLE = tables.TableInfo(
    name="default.t",
    columns=[
        tables.TableColumn("k", "bigint", nullable=False),
        tables.TableColumn("n", "int", nullable=True),
    ],
    partition_by=["k"],
    sort_by=[],
    properties={},
    version=0,
    arrow_schema="QUFB" * 1000,
    parts=2,
    rows=7,
    bytes=900,
)
PART = tables.PartInfo("r1-1-1", "k=<b>&\"'", 3, 900, "0" * 32, "default/t/k=1/r1-1-1.parquet", 900)
SKIPPED = cluster.SkippedRecordInfo(8, [], "ann", "burnt", MS)
LOST = cluster.LostPart(part="r1-1-1", kind="manifest", csn=8, tid="6-r1-1-1", replicas=[], time_ms=MS)
RECORD = log.LogEntry(
    csn=8,
    kind="commit",
    home="r1",
    time_ms=MS,
    tids=[
        log.LoggedTransaction(
            "6-r1-1-1",
            [
                log.AddedPart("default.t", "r1-1-1", "", 3, 900, "0"),
                log.RemovedPart("default.t", "r1"),
            ],
            manifest=None,
            holders=["r1"],
            label=None,
            data_change=True,
            meta={"a": [1]},
            batch=None,
        )
    ],
)
STATUS = cluster.StatusAnswer(
    id="r1",
    cluster_id="c",
    snapshot_csn=8,
    time_ms=MS,
    replicas=[cluster.ReplicaStatus(id="r1", phase_since_ms=MS), cluster.ReplicaStatus(id="r2")],
    lost=[LOST],
    skipped=[SKIPPED],
)
EVERY = [TABLE, PART, SKIPPED, LOST, RECORD, STATUS, msgspec.structs.replace(RECORD, skipped=SKIPPED)]


def kinds(of: type[Row] = Row) -> Iterator[type[Row]]:
    """Yield every kind of row."""
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


@pytest.mark.parametrize("row", EVERY, ids=lambda row: type(row).__name__)
def test_a_row_reads_like_the_dict_of_its_json(row: Row) -> None:
    """Code that was written for the dicts sees the same keys in the same order, and the same values."""
    was = msgspec.json.decode(msgspec.json.encode(row))
    assert json.dumps(row, default=dict) == json.dumps(was)
    assert list(row) == list(row.keys()) == list(dict(row)) == list(was)
    assert (row == was, was == row, row == {**was, "more": 1}, row == []) == (True, True, False, False)
    assert dict(row.items()) == dict(zip(row, row.values(), strict=True)) == {**row} == was
    assert len(row) == len(was)
    assert isinstance(row, Mapping)
    for name, value in was.items():
        assert name in row
        assert row[name] == row.get(name) == value
    assert ("missing" in row, row.get("missing"), row.get("missing", 5)) == (False, None, 5)
    with pytest.raises(KeyError, match="missing"):
        row["missing"]
    assert row | {"more": 1} == {**was, "more": 1} == {"more": 1} | row


def test_a_field_that_json_leaves_out_is_none_as_an_attribute() -> None:
    """The attribute always exists; the key does only where the agent has sent it."""
    assert (LOST.table, LOST.without) == (None, [])
    assert ("table" in LOST, "without" in LOST, LOST.get("rows", 0)) == (False, False, 0)
    assert "lost" in STATUS  # its JSON has every field
    assert RECORD.tids[0]["entries"][0]["action"] == "AddPart"


def test_a_row_is_a_frozen_value() -> None:
    """It cannot change under a program that keeps it, and it can be copied, pickled and matched."""
    with pytest.raises(AttributeError):
        PART.rows = 4  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(STATUS))  # noqa: S301 - our own bytes
    assert copy.deepcopy(STATUS) == again == STATUS
    assert {PART: 1}[copy.copy(PART)] == 1
    assert msgspec.structs.replace(PART, rows=4) != PART
    match PART:
        case {"part": part, "rows": 3}:
            assert part == "r1-1-1"
        case _:
            pytest.fail("a pattern for the dict does not match")
    assert pd.DataFrame([PART, PART])["rows"].tolist() == [3, 3]


def test_no_field_hides_a_method_or_has_another_name_in_json() -> None:
    """A new field called `items` would take the method away from every program."""
    methods = {name for name in vars(Row) if not name.startswith("_")} - {"shown"}
    found = list(kinds())
    assert {tables.TableInfo, cluster.StatusAnswer, members.MembersAnswer, TransactionAtHome} <= {*found}
    for kind in found:
        assert not methods & {*kind.__struct_fields__}, kind
        assert [one.name for one in msgspec.structs.fields(kind)] == [*kind.__struct_encode_fields__], kind
        assert all(hasattr(kind, name) for name in kind.shown), kind


def test_a_row_is_shown_in_one_short_line() -> None:
    """The schema in base64 is left out, and rows within a row are counted."""
    assert repr(TABLE) == (
        "TableInfo(name='default.t', columns=<2 TableColumn>, partition_by=['k'], rows=7, bytes=900, "
        "parts=2, version=0)"
    )
    assert "time=2023-11-14T22:13:20.123000+00:00" in repr(STATUS)
    assert "replicas=<2 ReplicaStatus>" in repr(STATUS)
    for row in EVERY:
        assert "\n" not in repr(row)
        assert len(repr(row)) < 300, repr(row)


def test_a_long_text_is_cut_at_a_limit_that_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who wants to see more sets another limit."""
    row = cluster.SwitchInfo("x", "y" * 500, "z")
    assert len(repr(row)) < 200
    monkeypatch.setattr(rows.SHORT, "maxstring", 1000)
    assert "y" * 500 in repr(row)


def test_times_are_aware_datetimes_beside_their_milliseconds() -> None:
    """The field of the wire stays; 0 and null mean that the time is not known."""
    assert STATUS.time == LOST.time == SKIPPED.time == RECORD.time == STATUS.replicas[0].phase_since == TIME
    assert TIME.tzinfo is UTC
    assert STATUS.time_ms == STATUS["time_ms"] == MS
    assert "time" not in STATUS  # no key: its JSON has none
    assert STATUS.replicas[1].phase_since is None
    assert instant(0) is None


def test_every_text_in_html_is_escaped() -> None:
    """A partition or a label may hold any characters; a notebook runs no script of them."""
    evil = "<script>alert('x')</script>"
    hostile = tables.PartInfo(evil, "\"&'", 3, 900, "0", evil, 900)
    for shown in (hostile._repr_html_(), RowList([hostile])._repr_html_()):
        assert "<script" not in shown
        assert "<td>&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;</td>" in shown
        assert "<td>&quot;&amp;&#x27;</td>" in shown
    nested = cluster.StatusAnswer(
        id=evil, cluster_id="", snapshot_csn=1, replicas=[cluster.ReplicaStatus(id=evil)]
    )
    assert "<script" not in nested._repr_html_()
    logged = log.LoggedTable("t", 0, {evil: evil})
    assert "<script" not in logged._repr_html_()


def test_a_list_of_rows_is_a_list_and_an_html_table() -> None:
    """It compares, slices and serialises as before; a notebook shows one line for each row."""
    found = RowList([PART, PART])
    assert found == [PART, PART]
    assert json.loads(json.dumps(found, default=dict)) == [dict(PART), dict(PART)]
    shown = RowList([TABLE, TABLE])._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<th>name</th><th>columns</th>" in shown
    assert "<td>default.t</td><td>&lt;2 TableColumn&gt;</td>" in shown
    assert "arrow_schema" not in shown
    assert RowList()._repr_html_() == "<p>no rows</p>"


def test_an_html_table_has_a_limit_that_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of a million parts does not stop a browser; the rest is counted."""
    many: RowList[Any] = RowList([PART] * 1201)
    assert many._repr_html_().count("<tr>") == 201
    assert many._repr_html_().endswith("<p>1,001 more rows</p>")
    monkeypatch.setattr(RowList, "html_rows_max", 2000)
    assert many._repr_html_().count("<tr>") == 1202
    assert "more rows" not in many._repr_html_()


def test_a_row_within_a_row_is_a_table_within_a_table() -> None:
    """A status shows its replicas, each in a line."""
    shown = STATUS._repr_html_()
    assert shown.count("<table>") == 4  # the status, its replicas, lost parts and skipped records
    assert "<td>r2</td>" in shown
    assert transactions.TransactionInfo in kinds()
