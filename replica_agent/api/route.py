"""A route as a value: what it takes, what it answers, and who handles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MethodType
from typing import Any, Literal

import msgspec
from aiohttp import web

from tidelock.errors import TidelockError
from tidelock.replica_agent.config.states import Action
from tidelock.replica_agent.uploads.tokens import Right

#: A handler as its class has it, with the instance as its first argument.
Handler = Callable[[Any, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Content:
    """A body that is no JSON of a struct: its media type, and what it is."""

    media_type: str
    meaning: str


#: A body: a struct, a list of them, or something else.
Body = type[msgspec.Struct] | type[list[Any]] | Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parameter of the query string.

    Attributes:
        name: Its name.
        kind: The type of its value in JSON's words; a struct: JSON of it.
        meaning: What it says.
        required: Whether a request without it is refused.
        offered: The values that it can have, where these are few.
    """

    name: str
    kind: Literal["integer", "number", "string"] | type[msgspec.Struct]
    meaning: str
    required: bool = False
    offered: tuple[str, ...] = ()


class AnyToken(Enum):
    """A token of the transaction, whatever its rights."""

    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route of an agent's API.

    Attributes:
        method: Of HTTP; ``*``: the handler tells methods apart, and `methods` are those that it knows.
        path: From the root, with names in braces. The last one takes slashes too if `rest` says so.
        handler: Its docstring's first line is the summary.
        subject: The group of routes that it is shown in.
        request: Its body; None: it has none.
        optional: A request without a body counts as one with an empty object.
        response: Of a request that succeeds; None: an empty body.
        status: HTTP status of a request that succeeds.
        other: Bodies of other statuses, where these are no errors.
        query: Parameters of the query string.
        errors: Which ones it may answer, besides those that every route may.
        action: The agent's state must allow it.
        token: A token of the transaction opens it: one with this right, or ANY.
        rest: The last name in the path takes all that follows, slashes included.
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
    query: tuple[Query, ...] = ()
    errors: tuple[type[TidelockError], ...] = ()
    action: Action | None = None
    token: Right | AnyToken | None = None
    rest: bool = False
    name: str | None = None
    methods: tuple[str, ...] = ()

    def definition(self, group: object) -> web.RouteDef:
        """Return what aiohttp registers; `group` is the instance whose method the handler is."""
        path = f"{self.path.removesuffix('}')}:.*}}" if self.rest else self.path
        handler = MethodType(self.handler, group)
        if self.method == "GET":
            return web.get(path, handler, name=self.name)
        return web.route(self.method, path, handler, name=self.name)
