"""What a token opens besides the folder of its transaction: routes of that transaction, by its rights.

``Authorization: Bearer tl1...`` in the place of the shared secret. Whoever shows a token has its rights and
no others, also where the agents have no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from tidelock.errors import TokenRightError
from tidelock.replica_agent.api.operations import Operations
from tidelock.replica_agent.tables.schema import full_name
from tidelock.replica_agent.transactions.registry import Transaction
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims
from tidelock.token_text import PREFIX

_CLAIMS: Final = "tidelock.claims"


class Bearers:
    """Lets requests with a token in; part of :func:`http.authentication`."""

    def __init__(self, agent: Operations, opened: Mapping[tuple[str, str], Right | None]) -> None:
        """Look at tokens of ``agent``'s transactions.

        Args:
            agent: This replica.
            opened: The routes (method, path) with the right that each takes; None: any token of the
                transaction will do.
        """
        self._agent, self._opened = agent, opened

    def admit(self, request: web.Request, given: str) -> bool:
        """Tell whether what a request shows is a token; if it is, the request may be answered.

        Raises:
            TokenRightError: The route is not opened by this token, or by none.
            AccessDeniedError: As :meth:`Passes.admit_to`.
        """
        if not given.startswith(f"{PREFIX}."):
            return False
        resource = request.match_info.route.resource
        route = request.method, resource.canonical if resource is not None else ""
        if route not in self._opened:
            raise TokenRightError(
                f"{request.method} {request.path} is not open to tokens of transactions; it takes the shared "
                "secret",
                right="",
            )
        info = request.match_info
        claims = self._agent.writes.passes.admit_to(given, info["tid"], self._opened[route])
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


def find(agent: Operations, request: web.Request) -> Transaction:
    """Return the transaction that a request names, and take it as a sign of life if it is one."""
    tx = agent.transactions.find(request.match_info["tid"])
    if shows_life(request):
        agent.transactions.touch(tx)
    return tx
