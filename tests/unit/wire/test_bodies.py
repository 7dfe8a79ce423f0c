"""The bytes of the bodies, strict requests and lenient answers, and the results that clients see."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import msgspec
import pytest

from tidelock.client import ChangedPart, InsertResult
from tidelock.client.agents.transport import json_text
from tidelock.client.values.results import ChangeResult, RemoveResult
from tidelock.errors import BadRequestError
from tidelock.wire import (
    audit,
    changes,
    cluster,
    log,
    members,
    peers,
    reads,
    statements,
    tables,
    transactions,
)
from tidelock.wire.failure import Failure

TID = "7-r1-1-1"
PART = changes.ChangedPart("r1-1-1", TID, "/snapshots/8/default/t/x.parquet", {"p": None}, 3, 900, 900)
FINDING = audit.AuditFinding(
    check="parts", fault="lost", severity=audit.Severity.ERROR, expected="a", found="b", next_step="c", csn=8
)
DEFINITION: dict[str, Any] = {
    "name": "default.t", "columns": [], "partition_by": [], "sort_by": [], "properties": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (transactions.Begun(TID, 7, 60.0), '{"tid":"7-r1-1-1","snapshot_csn":7,"lease_s":60.0}'),
        (transactions.LeaseAnswer(60.0, "open"), '{"lease_s":60.0,"state":"open"}'),
        (
            transactions.LeaseAnswer(1.0, "rolled_back", Failure("LeaseExpiredError", "over", {"tid": TID})),
            ('{"lease_s":1.0,"state":"rolled_back","why":{"error":"LeaseExpiredError","message":"over",'
            '"details":{"tid":"7-r1-1-1"}}}'),
        ),
        (
            transactions.CommitAnswer(TID, None, None),
            '{"tid":"7-r1-1-1","csn":null,"time_ms":null,"state":"committed"}',
        ),
        (
            transactions.OutcomeAnswer(TID, "committed", csn=8, time_ms=0),
            '{"tid":"7-r1-1-1","outcome":"committed","csn":8,"time_ms":0}',
        ),
        (transactions.OutcomeAnswer(TID, "aborted"), '{"tid":"7-r1-1-1","outcome":"aborted"}'),
        (
            transactions.OutcomeAnswer(TID, "too_old", floor=9),
            '{"tid":"7-r1-1-1","outcome":"too_old","floor":9}',
        ),
        (
            transactions.LabelAnswer("free", None, None, None, None),
            '{"label":"free","tid":null,"batch":null,"csn":null,"time_ms":null,"progress":null}',
        ),
        (reads.SnapshotPin("r1-1-1", 7, 60.0), '{"id":"r1-1-1","csn":7,"ttl_s":60.0}'),
        (
            msgspec.convert({**DEFINITION, "csn": 8, "version": 0}, tables.CommittedTable),
            '{"name":"default.t","columns":[],"partition_by":[],"sort_by":[],"properties":{},"csn":8,"version":0}',
        ),
        (
            changes.ChangePageAnswer(8, True, (changes.ChangeSetAnswer(8, 5, (TID,), (PART,), ()),)),
            ('{"to":8,"complete":true,"sets":[{"csn":8,"time_ms":5,"tids":["7-r1-1-1"],"added":[{"part":"r1-1-1",'
            '"tid":"7-r1-1-1","path":"/snapshots/8/default/t/x.parquet","partition":{"p":null},"rows":3,'
            '"length":900,"file_length":900}],"removed":[]}],"time_ms":0}'),
        ),
        (
            FINDING,
            '{"check":"parts","fault":"lost","severity":"error","expected":"a","found":"b","next_step":"c","csn":8}',
        ),
        (
            log.RemovedPart("default.t", "r1-1-1"),
            '{"action":"RemovePart","table":"default.t","part":"r1-1-1"}',
        ),
        (peers.ForgetRequest(tids=[TID]), '{"tids":["7-r1-1-1"],"parts":[]}'),
        (peers.Nothing(), "{}"),
    ],
)  # fmt: skip
def test_the_bytes_of_a_body(body: msgspec.Struct, text: str) -> None:
    """Names, their order and omitted fields are fixed: clients and peers of other versions read them."""
    assert msgspec.json.encode(body).decode() == text
    assert msgspec.json.decode(text, type=type(body)) == body


def test_a_client_leaves_out_what_says_no_more_than_its_absence() -> None:
    """An argument that is not given is left to the agent: its default may be another one."""
    assert json_text(transactions.BeginRequest()) == '{"isolation": "snapshot"}'
    assert json_text(changes.ChangedRowsRequest(since=3, to=9)) == '{"from": 3, "to": 9}'
    spec = statements.MergeSpec(on=["k"], when_matched_update={"n": statements.Literal(None)})
    assert json_text(spec) == '{"on": ["k"], "when_matched_update": {"n": {"value": null}}, "params": []}'


def test_a_client_sends_a_false_that_is_no_default() -> None:
    """Of three values, false is not the one that an absent field means."""
    copies = members.MembersRequest(change="copies", copies=2, racks=False)
    assert msgspec.json.decode(json_text(copies), type=members.MembersRequest) == copies
    assert "undo" not in json_text(copies)


def test_a_parameter_that_json_cannot_carry_is_refused() -> None:
    """A parameter that JSON cannot carry is refused before a request is sent."""
    for value in (object(), float("nan"), b"x"):
        with pytest.raises(BadRequestError, match="parameter"):
            json_text(reads.QueryRequest(sql="select ?", params=[value]))


def test_a_request_with_an_unknown_field_is_refused() -> None:
    """An agent refuses fields that it does not know."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `colour`"):
        msgspec.json.decode(b'{"colour": "red"}', type=reads.SnapshotRequest)


def test_an_answer_of_another_version_is_read() -> None:
    """Fields that a newer agent adds are left out; those that an older one lacks have their defaults."""
    newer = b'{"rows": 1, "parts": 2, "speed": 3}'
    assert msgspec.json.decode(newer, type=InsertResult) == InsertResult(rows=1, parts=2)
    older = b'{"id": "r1", "cluster_id": "c1", "snapshot_csn": 7, "replicas": [{"id": "r1"}]}'
    found = msgspec.json.decode(older, type=cluster.StatusAnswer)
    assert (found.wait_bound_s, found.replicas[0].alive, found.replicas[0].api) == (0.0, True, "")


def _twin(kind: type) -> type:
    """Return a frozen dataclass with the same name and fields."""
    names = [field.name for field in msgspec.structs.fields(kind)]
    return dataclasses.make_dataclass(kind.__name__, names, frozen=True, slots=True)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (InsertResult, (3, 1)),
        (RemoveResult, (3, 1)),
        (ChangeResult, (1, 2, 3, 4, 5)),
        (ChangedPart, ("r1-1-1", TID, "/x", {"p": 1}, 3, 900, 900)),
    ],
)
def test_a_public_result_behaves_as_a_frozen_dataclass(kind: Any, values: tuple[Any, ...]) -> None:
    """Its text, equality, attributes and pattern; it cannot be changed, and is copied and pickled."""
    found, twin = kind(*values), _twin(kind)(*values)
    assert repr(found) == repr(twin)
    assert kind.__match_args__ == twin.__match_args__
    assert [getattr(found, name) for name in twin.__match_args__] == list(values)
    assert found == kind(**dict(zip(kind.__match_args__, values, strict=True)))
    assert found != twin
    assert found != kind(*values[:-1], -1)
    assert found == copy.deepcopy(found) == pickle.loads(pickle.dumps(found))  # noqa: S301 - our own bytes
    with pytest.raises(AttributeError):
        found.rows = 0
    if not any(isinstance(value, dict) for value in values):
        assert hash(found) == hash(kind(*values))
