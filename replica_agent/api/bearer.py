"""Authentication by token: the routes that a token opens besides the folder of its transaction.

``Authorization: Bearer tl1...`` replaces the shared secret. A request with a token has the rights of the
token and no others, also where the agents have no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelock.errors import TokenRightError
from tidelock.replica_agent.services.uploads import UploadService
from tidelock.replica_agent.tables.names import full_name
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims
from tidelock.token_text import PREFIX

_CLAIMS: Final = "tidelock.claims"


@dataclass(slots=True, eq=False, repr=False)
class Bearers:
    """Admits requests with a token; part of :func:`http.authentication`."""

    service: UploadService
    #: The routes (method, path), each with the right that it requires; None: any token of the transaction is
    #: enough.
    opened: Mapping[tuple[str, str], Right | None]

    def admit(self, request: web.Request, given: str) -> bool:
        """Return whether the credential of a request is a token; if it is one, the request is admitted.

        Raises:
            TokenRightError: This token does not open the route, or no token does.
            AccessDeniedError: As :meth:`TokenIssuer.admit_to`.
        """
        if not given.startswith(f"{PREFIX}."):
            return False
        resource = request.match_info.route.resource
        route = request.method, resource.canonical if resource is not None else ""
        if route not in self.opened:
            raise TokenRightError(
                f"{request.method} {request.path} does not accept tokens of transactions; send the shared "
                "secret",
                right="",
            )
        info = request.match_info
        claims = self.service.tokens.admit_to(given, info["tid"], self.opened[route])
        if "table" in info:
            claims.require_table(full_name(info["table"]))
        request[_CLAIMS] = claims
        return True


def claims_of(request: web.Request) -> TokenClaims | None:
    """Return the claims of a request's token; None for a request with the shared secret."""
    found: TokenClaims | None = request.get(_CLAIMS)
    return found


def shows_life(request: web.Request) -> bool:
    """Return whether a request keeps its transaction alive.

    A request with a token does so only if the token has that right: the process that uses the token may
    outlive the program that is to commit.
    """
    claims = claims_of(request)
    return claims is None or Right.HEARTBEAT in claims.rights
