"""What a token opens besides the folder of its transaction: routes of that transaction, by its rights.

``Authorization: Bearer tl1...`` in the place of the shared secret. Whoever shows a token has its rights and
no others, also where the agents have no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from tidelock.errors import TokenRightError
from tidelock.replica_agent.services.uploads import UploadService
from tidelock.replica_agent.tables.schema import full_name
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims
from tidelock.token_text import PREFIX

_CLAIMS: Final = "tidelock.claims"


@dataclass(slots=True, eq=False, repr=False)
class Bearers:
    """Lets requests with a token in; part of :func:`http.authentication`."""

    service: UploadService
    #: The routes (method, path) with the right that each takes; None: any token of the transaction will do.
    opened: Mapping[tuple[str, str], Right | None]

    def admit(self, request: web.Request, given: str) -> bool:
        """Tell whether what a request shows is a token; if it is, the request may be answered.

        Raises:
            TokenRightError: The route is not opened by this token, or by none.
            AccessDeniedError: As :meth:`TokenIssuer.admit_to`.
        """
        if not given.startswith(f"{PREFIX}."):
            return False
        resource = request.match_info.route.resource
        route = request.method, resource.canonical if resource is not None else ""
        if route not in self.opened:
            raise TokenRightError(
                f"{request.method} {request.path} is not open to tokens of transactions; it takes the shared "
                "secret",
                right="",
            )
        info = request.match_info
        claims = self.service.admit_to(given, info["tid"], self.opened[route])
        if "table" in info:
            claims.require_table(full_name(info["table"]))
        request[_CLAIMS] = claims
        return True


def claims_of(request: web.Request) -> TokenClaims | None:
    """Return what the token of a request says; None for one that has come with the secret."""
    found: TokenClaims | None = request.get(_CLAIMS)
    return found


def shows_life(request: web.Request) -> bool:
    """Tell whether a request keeps its transaction alive.

    One with a token does only if that is its right: who uses it may outlive the program that is to commit.
    """
    claims = claims_of(request)
    return claims is None or Right.HEARTBEAT in claims.rights
