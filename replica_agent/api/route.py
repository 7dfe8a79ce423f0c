"""A route as a value: what it accepts, what it answers, and its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from types import MethodType
from typing import Any, Literal

import msgspec
from aiohttp import web

from tidelock.errors import TidelockError
from tidelock.replica_agent.config.states import AgentAction
from tidelock.replica_agent.uploads.tokens import Right

#: A handler as its class defines it, with the instance as its first argument.
Handler = Callable[[Any, web.Request], Awaitable[web.StreamResponse]]


class Content(msgspec.Struct, frozen=True):
    """A body other than the JSON of a struct: its media type and its description."""

    media_type: str
    meaning: str


#: A body: a struct, a list of them, or something else.
Body = type[msgspec.Struct] | type[list[Any]] | Content


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the query string.

    Attributes:
        name: Its name.
        kind: The JSON type of its value; for a struct: the JSON of the struct.
        meaning: Its description.
        required: Whether a request without it is refused.
        offered: Its possible values, where they are few.
    """

    name: str
    kind: Literal["integer", "number", "string"] | type[msgspec.Struct]
    meaning: str
    required: bool = False
    offered: tuple[str, ...] = ()


class AnyToken(Enum):
    """A token of the transaction, whatever its rights."""

    ANY = "any"


class ApiRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One route of an agent's API.

    Attributes:
        method: The HTTP method; ``*``: the handler distinguishes the methods, and `methods` lists them.
        path: From the root, with names in braces. The last name also matches slashes if `rest` is set.
        handler: The method that answers; the first line of its docstring is the summary.
        subject: The group of routes in which the document shows it.
        request: The body of a request; None: no body.
        optional: A request without a body counts as one with an empty object.
        response: The body of a successful response; None: an empty body.
        status: The HTTP status of a successful response.
        other: The bodies of other statuses that are not errors.
        query: Parameters of the query string.
        errors: The errors that it may answer, besides the errors of every route.
        action: The action that the agent's state must allow.
        token: The right that a token of the transaction needs to open it, or ANY.
        rest: Whether the last name in the path matches all that follows, slashes included.
        name: Name of the route in aiohttp, for :func:`http.authentication`.
        methods: See `method`.
    """

    method: str
    path: str
    handler: Handler
    subject: str
    request: Body | None = None
    optional: bool = False
    response: Body | None
    status: int = 200
    other: Mapping[int, Body] | None = None
    query: tuple[Parameter, ...] = ()
    errors: tuple[type[TidelockError], ...] = ()
    action: AgentAction | None = None
    token: Right | AnyToken | None = None
    rest: bool = False
    name: str | None = None
    methods: tuple[str, ...] = ()

    def definition(self, group: object) -> web.RouteDef:
        """Return the definition for aiohttp; `group` is the instance that has the handler as a method."""
        path = f"{self.path.removesuffix('}')}:.*}}" if self.rest else self.path
        handler = MethodType(self.handler, group)
        if self.method == "GET":
            return web.get(path, handler, name=self.name)
        return web.route(self.method, path, handler, name=self.name)
