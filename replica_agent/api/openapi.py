"""The OpenAPI document of an agent, generated from the table of routes and the structs of `tidelock.wire`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from http import HTTPStatus
from inspect import cleandoc
from textwrap import dedent
from typing import Any, Final

import msgspec
from msgspec import inspect

from tidelock.errors import (
    AccessDeniedError,
    BadRequestError,
    EncodedBodyError,
    TidelockError,
    TooLargeError,
    UnavailableError,
)
from tidelock.replica_agent.api.route import ApiRoute, Body, Content, Parameter
from tidelock.replication.core.part_frames import GROUP_PARTS_MAX
from tidelock.wire.failure import Failure

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
#: Errors that every route may answer.
_ANY_ROUTE: Final[tuple[type[TidelockError], ...]] = (
    AccessDeniedError,
    BadRequestError,
    EncodedBodyError,
    TidelockError,
    UnavailableError,
)
#: Paths that need no secret.
_OPEN: Final = frozenset({"/healthz", "/readyz"})

_NAMES: Final = {
    "csn": "A CSN.",
    "id": "Id of a snapshot, as POST /api/v1/snapshots gives it.",
    "label": "The label; slashes belong to it.",
    "name": "Name of a clone, chosen by the replica that clones.",
    "namespace": "Name of a namespace.",
    "part": "Id of a part: <replica>-<boot>-<counter>.",
    "path": "The path below; slashes belong to it.",
    "table": "<name> or <namespace>.<name>.",
    "tid": "Id of a transaction: <snapshot CSN>-<replica>-<boot>-<counter>.",
}

_ABOUT: Final = """\
The HTTP interface of a Tidelock agent. docs/protocol.md says what the routes promise.

Each agent has two addresses. `api` takes everything but the paths that name another server here: those are
served at `data`. With a shared secret set, every request to `api` carries it as a bearer token, /healthz and
/readyz excepted; some routes of a transaction take a token of it instead. An error is a status and a
`Failure`, whose `error` is the name of a class in tidelock.errors; a client that does not know the name goes
by the status. Answers may get further fields: ignore those that you do not know. Requests with unknown fields
are refused.
"""


def document(routes: Sequence[ApiRoute]) -> dict[str, Any]:
    """Return the document: the routes of the API address, and the paths of the data address."""
    paths: dict[str, dict[str, Any]] = {}
    components = _components(routes)
    for route in routes:
        for method in route.methods or (route.method,):
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tidelock agent", "version": "1", "description": _ABOUT},
        "servers": [_server("api", "127.0.0.1:8801")],
        "security": [{}, {"secret": []}],
        "paths": paths | _DATA_PATHS,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "secret": _bearer("The shared secret of the cluster."),
                "token": _bearer("A token of the transaction, with the right that x-tidelock-token names."),
            },
        },
    }


def _bearer(meaning: str) -> dict[str, str]:
    return {"type": "http", "scheme": "bearer", "description": meaning}


def _server(name: str, default: str) -> dict[str, Any]:
    meaning = f"Address `{name}` of an agent."
    return {"url": f"http://{{{name}}}", "variables": {name: {"default": default, "description": meaning}}}


def _operation(route: ApiRoute, method: str) -> dict[str, Any]:
    summary, _, more = (route.handler.__doc__ or "").strip().partition("\n")
    allowed = route.action and f"Answered while the agent's state allows `{route.action.value}`."
    description = "\n\n".join(filter(None, (" ".join(more.split()), allowed)))
    suffix = f"_{method.lower()}" if route.methods else ""
    operation: dict[str, Any] = {
        "operationId": f"{route.subject}_{route.handler.__name__}{suffix}",
        "tags": [route.subject],
        "summary": summary,
        "responses": _responses(route),
    }
    if description:
        operation["description"] = description
    if parameters := [*_path_parameters(route.path), *map(_query_parameter, route.query)]:
        operation["parameters"] = parameters
    if route.request is not None:
        operation["requestBody"] = {"required": not route.optional, **_content(route.request)}
    if route.path in _OPEN:
        operation["security"] = []
    elif route.token is not None:
        operation["security"] = [{}, {"secret": []}, {"token": []}]
        operation["x-tidelock-token"] = route.token.value
    if route.action:
        operation["x-tidelock-action"] = route.action.value
    return operation


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for piece in path.split("/"):
        if piece.startswith("{"):
            name = piece.strip("{}")
            schema = {"type": "string"}
            yield {
                "name": name, "in": "path", "required": True, "description": _NAMES[name], "schema": schema,
            }  # fmt: skip


def _query_parameter(query: Parameter) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": query.name, "in": "query", "required": query.required, "description": query.meaning,
    }  # fmt: skip
    if not isinstance(query.kind, str):
        return shown | _content(query.kind)
    schema: dict[str, Any] = {"type": query.kind}
    if query.offered:
        schema["enum"] = list(query.offered)
    return {**shown, "schema": schema}


def _responses(route: ApiRoute) -> dict[str, Any]:
    found = {str(route.status): {"description": "Done.", **_content(route.response)}}
    for status, body in (route.other or {}).items():
        found[str(status)] = {"description": HTTPStatus(status).phrase, **_content(body)}
    if isinstance(route.response, Content) and route.methods:
        found["default"] = {"description": "A RemoteException, or a redirection to where the bytes go."}
        return found
    failures: dict[int, set[str]] = {}
    bounded = () if route.request is None else (TooLargeError,)
    for error in (*_ANY_ROUTE, *bounded, *route.errors):
        failures.setdefault(error.http_status, set()).add(error.__name__)
    for status, names in failures.items():
        if str(status) not in found:
            found[str(status)] = {"description": ", ".join(sorted(names)), **_content(Failure)}
    return found


def _content(body: Body | None) -> dict[str, Any]:
    match body:
        case None:
            return {}
        case Content(media_type, meaning):
            return {"description": meaning, "content": {media_type: {}}}
        case _:
            (schema,), _components = msgspec.json.schema_components([body], ref_template=_REF)
            return {"content": {_JSON: {"schema": schema}}}


def _components(routes: Iterable[ApiRoute]) -> dict[str, Any]:
    asked: list[Body | None] = [route.request for route in routes]
    asked += [query.kind for route in routes for query in route.query if not isinstance(query.kind, str)]
    answers = [body for route in routes for body in (route.response, *(route.other or {}).values())]
    requests, responses = _structs(asked), _structs([*answers, Failure])
    _, found = msgspec.json.schema_components([*requests.values(), *responses.values()], ref_template=_REF)
    for name, schema in found.items():
        struct = responses.get(name) or requests.get(name)
        if struct is None:
            continue  # an enumeration
        schema["description"], meanings = _descriptions(struct)
        for field in msgspec.structs.fields(struct):
            shown = schema["properties"][field.encode_name]
            _portable(shown)
            if field.name in meanings:
                shown["description"] = meanings[field.name]
        if name not in requests and not struct.__struct_config__.omit_defaults:
            schema["required"] = list(schema.get("properties", {}))  # the agent writes every field
    return found


def _portable(schema: dict[str, Any]) -> None:
    """Rewrite a pattern for JSON Schema: with ^ and $ in place of Python's own anchors."""
    if "pattern" in schema:
        schema["pattern"] = schema["pattern"].replace(r"\A", "^").replace(r"\Z", "$")


def _descriptions(struct: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """Return the description of a struct and of each of its attributes, from its docstring."""
    about, _, attributes = cleandoc(struct.__doc__ or "").partition("\n\nAttributes:\n")
    meanings: dict[str, str] = {}
    name = ""
    for line in dedent(attributes).splitlines():
        if line.startswith(" "):
            meanings[name] += f" {line.strip()}"
        else:
            name, _, meanings[name] = (part.strip() for part in line.partition(":"))
    return " ".join(about.split()), meanings


def _structs(bodies: Iterable[Body | None]) -> dict[str, type[msgspec.Struct]]:
    """Return the structs of some bodies and the structs nested in them, by name.

    Raises:
        ValueError: Two of them have one name, and the document would have the fields of one for both.
    """
    found: dict[str, type[msgspec.Struct]] = {}
    left = [inspect.type_info(body) for body in bodies if body is not None and not isinstance(body, Content)]
    while left:
        match left.pop():
            case inspect.StructType(cls=cls, fields=fields):
                if cls.__name__ not in found:
                    found[cls.__name__] = cls
                    left += [field.type for field in fields]
                elif found[cls.__name__] is not cls:
                    modules = sorted((cls.__module__, found[cls.__name__].__module__))
                    raise ValueError(f"two bodies have the name {cls.__name__}, of {' and '.join(modules)}")
            case inspect.UnionType(types=types):
                left += types
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                left.append(item)
            case inspect.DictType(value_type=value):
                left.append(value)
    return found


def _of_data(name: str, summary: str, media_type: str, *, head: bool = True) -> dict[str, Any]:
    """Return the paths of one kind of file at the data address, which the readers serve."""
    path = next(_path_parameters(name))
    operation: dict[str, Any] = {
        "tags": ["data"],
        "summary": summary,
        "parameters": [path],
        "responses": {
            "200": {"description": "All of it.", "content": {media_type: {}}},
            "default": {"description": "An error; docs/protocol.md#http."},
        },
    }
    kind = name.split("/")[1]
    item: dict[str, Any] = {"servers": [_server("data", "127.0.0.1:9801")]}
    item["get"] = {**operation, "operationId": f"data_{kind}_get"}
    if head:
        partial = {"description": "The bytes that Range asks for.", "content": {media_type: {}}}
        item["get"] = {
            **item["get"], "responses": {**operation["responses"], "206": partial},
        }  # fmt: skip
        item["head"] = {**operation, "operationId": f"data_{kind}_head"}
    return {name: item}


def _many_parts() -> dict[str, Any]:
    """Return the path by which a replica asks another one for many small parts."""
    operation = {
        "tags": ["data"],
        "summary": "Read small parts, committed or not, in one answer; docs/protocol.md#parts.",
        "operationId": "data_parts_post",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {
                            "parts": {
                                "type": "array", "items": {"type": "string"}, "maxItems": GROUP_PARTS_MAX,
                            }
                        },
                        "required": ["parts"],
                        "additionalProperties": False,
                    }
                }
            },
        },
        "responses": {
            "200": {
                "description": "One frame for each part.",
                "content": {"application/vnd.tidelock.parts": {}},
            },
            "default": {"description": "An error; docs/protocol.md#http."},
        },
    }  # fmt: skip
    return {"/parts": {"servers": [_server("data", "127.0.0.1:9801")], "post": operation}}


_DATA_PATHS: Final = {
    **_of_data(
        "/webhdfs/v1/snapshots/{path}",
        "Read the files of a snapshot as Hadoop does: `op` names the operation.",
        "*/*",
        head=False,
    ),
    **_of_data("/snapshots/{path}", "Read a file of a snapshot, or list a folder.", "*/*"),
    **_of_data(
        "/parts/{part}", "Read the bytes of a part, committed or not.", "application/vnd.apache.parquet"
    ),
    **_many_parts(),
}
