"""The table of routes, the OpenAPI document that is generated from it, and the routes that are served."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from tests.support.project import openapi_page
from tests.support.replicas.damage import no_damage
from tests.unit.replica_agent.api.test_state_answers import Agent
from tidelock.replica_agent.api.app import application
from tidelock.replica_agent.api.openapi import document
from tidelock.replica_agent.api.route import ApiRoute, Content
from tidelock.replica_agent.api.routes import ROUTES
from tidelock.replica_agent.config.states import AgentState
from tidelock.wire.statements import ChangeResult
from tidelock.wire.tables import TableInfo

ALL = [route for group in ROUTES.values() for route in group]
DOCUMENT = document(ALL)
OPERATIONS = [
    (method, path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method != "servers"
]


def served() -> set[tuple[str, str]]:
    """Return the methods and paths of the application, without HEAD, which accompanies every GET."""
    app: web.Application = application(Agent(AgentState.SERVING).services, no_damage)
    found = set()
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        methods = ("GET", "PUT", "DELETE") if route.method == "*" else (route.method,)
        found |= {(method, path) for method in methods if method != "HEAD"}
    return found


def documented() -> set[tuple[str, str]]:
    """Return the methods and paths of the document that are served at the API address."""
    return {
        (method.upper(), path)
        for path, item in DOCUMENT["paths"].items()
        if "servers" not in item
        for method in item
    }


def test_the_document_has_the_routes_that_are_served() -> None:
    """Every served route is in the document, and every route in the document is served."""
    assert served() == documented()


def test_the_file_is_the_document() -> None:
    """docs/openapi.json is written by `python -m tests.support.project.openapi_page`."""
    assert openapi_page.PAGE.read_text(encoding="utf-8") == openapi_page.page()


def test_an_operation_has_a_summary_and_an_id_of_its_own() -> None:
    """The summary is the first line of the handler's docstring."""
    assert all(operation["summary"].endswith(".") for *_, operation in OPERATIONS)
    ids = Counter(operation["operationId"] for *_, operation in OPERATIONS)
    assert [one for one, count in ids.items() if count > 1] == []


def test_every_reference_leads_to_a_component() -> None:
    """Every reference leads to a component, and every component is referenced."""
    text = json.dumps(DOCUMENT)
    named = {piece.split('"')[0] for piece in text.split("#/components/schemas/")[1:]}
    assert named == set(DOCUMENT["components"]["schemas"])


def test_what_an_answer_always_holds_is_required() -> None:
    """A default serves clients that read an answer of another version: the agent writes every field."""
    schema = DOCUMENT["components"]["schemas"]["ChangeResult"]
    assert schema["required"] == list(msgspec.structs.asdict(ChangeResult()))


def test_what_an_answer_may_leave_out_is_not_required() -> None:
    """An outcome has a CSN only if the transaction committed."""
    assert DOCUMENT["components"]["schemas"]["OutcomeAnswer"]["required"] == ["tid", "outcome"]


@pytest.mark.parametrize("route", ALL, ids=lambda route: f"{route.method} {route.path}")
def test_requests_are_strict_and_answers_are_not(route: ApiRoute) -> None:
    """An agent refuses an unknown field; a client accepts the additional fields of a newer agent."""
    if isinstance(route.request, type) and not isinstance(route.request, Content):
        assert cast("Any", route.request).__struct_config__.forbid_unknown_fields
    if isinstance(route.response, type) and issubclass(route.response, msgspec.Struct):
        assert not route.response.__struct_config__.forbid_unknown_fields


def test_two_bodies_of_one_name_are_refused() -> None:
    """The name leads to one schema, so the answers of one of them would not be as documented."""
    other: Any = msgspec.defstruct(TableInfo.__name__, [("something", int)])
    with pytest.raises(ValueError, match=r"two bodies have the name TableInfo, of .* and tidelock\.wire"):
        document(
            [
                msgspec.structs.replace(ALL[0], response=TableInfo),
                msgspec.structs.replace(ALL[0], response=list[other]),
            ]
        )
