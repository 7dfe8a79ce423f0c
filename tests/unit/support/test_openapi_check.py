"""The comparison of answers with the OpenAPI document: an answer that was altered is seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.project.openapi_check import Checker, Told
from tidelock.replica_agent.api.routes import document

BEGIN = "/api/v1/transactions"
BEGUN = {"tid": "7-r1-1-1", "snapshot_csn": 7, "lease_s": 60.0}
FAILURE = {"error": "StandbyError", "message": "it is behind", "details": {"snapshot_csn": 7}}


def told(body: Any, status: int = 201, content_type: str = "application/json; charset=utf-8") -> Told:
    """An answer."""
    return Told(status, content_type, json.dumps(body).encode())


@pytest.fixture
def checker() -> Checker:
    """The document as agents serve it."""
    return Checker(json.loads(document()))


def test_an_answer_as_documented_passes(checker: Checker) -> None:
    """A success is remembered, an error is none; fields that a newer agent adds are no difference."""
    assert checker.differences("POST", BEGIN, told(FAILURE, 503)) == []
    assert checker.succeeded == set()
    assert checker.differences("POST", BEGIN, told({**BEGUN, "new": 1})) == []
    assert checker.succeeded == {("POST", BEGIN)}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (told({**BEGUN, "snapshot_csn": "7"}), "$.snapshot_csn: '7' is not of type 'integer'"),
        (told({"tid": "7-r1-1-1", "snapshot_csn": 7}), "'lease_s' is a required property"),
        (told([BEGUN]), "is not of type 'object'"),
        (told(BEGUN, content_type="text/plain"), "expected application/json"),
        (told(BEGUN, status=202), "answered 202"),
        (told({"error": "StandbyError"}, status=503), "'message' is a required property"),
    ],
    ids=["type", "field left out", "list", "content type", "status", "error"],
)
def test_an_altered_answer_is_seen(checker: Checker, answer: Told, words: str) -> None:
    """Each kind of difference is reported, and no other one."""
    assert words in "".join(checker.differences("POST", BEGIN, answer))


def test_a_route_that_the_document_lacks_is_seen(checker: Checker) -> None:
    """An answer of it is a difference by itself."""
    found = checker.differences("GET", "/api/v1/attic", told({}))
    assert found == ["GET /api/v1/attic is not in the document"]


def test_the_operations_are_those_of_all_paths(checker: Checker) -> None:
    """The servers of a path are not counted among its operations."""
    assert ("GET", "/parts/{part}") in set(checker.operations())
    methods = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}
    assert all(method in methods for method, _ in checker.operations())
