"""Tokens: signed capabilities for one open transaction, which travel inside of paths. Pure.

A token is a signed text (:mod:`signed`), so it is one segment of a path. Its holder may do what its claims
allow until it expires or the transaction ends, whichever is first. Only the transaction's home decides
whether the transaction has ended.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.errors import TokenExpiredError, TokenForeignError, TokenRightError
from tidelock.replica_agent.uploads import signed
from tidelock.wire.ids import TableName
from tidelock.wire.transactions import TOKEN_RIGHTS

_CONTEXT: Final = b"tidelock token 1\0"


class Right(Enum):
    """A right that a token can have."""

    #: Add rows to its tables.
    APPEND = "append"
    #: Remove rows from its tables, to put others in their place.
    REPLACE = "replace"
    #: Read its tables as the transaction sees them, including its own changes.
    READ = "read"
    #: Keep the transaction alive.
    HEARTBEAT = "heartbeat"
    #: End the transaction: by a commit or a rollback.
    COMMIT = "commit"
    #: With "append": the folder of a table shows itself to engines that look at a table before they write,
    #: and its jobs count when the engine has said that they went well.
    BY_NAME = "by_name"


#: The rights of a token if the request names none; to read, keep alive or end must be requested by name.
DEFAULT_RIGHTS: Final = tuple(map(Right, TOKEN_RIGHTS))


class TokenClaims(msgspec.Struct, frozen=True):
    """The claims of a token.

    Attributes:
        cluster: Id of the cluster.
        tid: The transaction.
        rights: The allowed actions in the transaction.
        tables: The tables of these actions; None for all tables.
        expires_s: When it expires, by the monotonic clock of the home in seconds.
    """

    cluster: str
    tid: Tid
    rights: frozenset[Right]
    tables: frozenset[TableName] | None
    expires_s: int

    def require(self, right: Right, table: TableName) -> None:
        """Raise TokenRightError unless the token allows this in that table."""
        self.require_right(right)
        self.require_table(table)

    def require_right(self, right: Right) -> None:
        """Raise TokenRightError unless the token allows this."""
        if right not in self.rights:
            held = ", ".join(sorted(item.value for item in self.rights)) or "nothing"
            raise TokenRightError(
                f"the token allows {held}, but the request needs {right.value}; make one with that right "
                f"(tx.token(rights=...))",
                right=right.value,
            )

    def require_table(self, table: TableName) -> None:
        """Raise TokenRightError unless the token is for this table."""
        if self.tables is not None and table not in self.tables:
            raise TokenRightError(
                f"the token is for {', '.join(sorted(self.tables)) or 'no table'}, but the request is about "
                f"{table}; make one for that table (tx.token(tables=...))",
                table=table,
            )


def key_of(secret: str, cluster: str, boot_key: bytes) -> bytes:
    """Return the key of a cluster's tokens: derived from its shared secret, or ``boot_key`` without one."""
    if not secret:
        return boot_key
    return hmac.digest(secret.encode(), _CONTEXT + cluster.encode(), hashlib.sha256)


def sign(key: bytes, claims: TokenClaims) -> str:
    """Return the token with these claims."""
    fields: dict[str, Any] = {
        "c": claims.cluster,
        "t": str(claims.tid),
        "r": sorted(right.value for right in claims.rights),
        "e": claims.expires_s,
    }
    if claims.tables is not None:
        fields["n"] = sorted(claims.tables)
    return signed.sign(key, _CONTEXT, fields)


def verify(key: bytes, token: str, *, cluster: str, replica: ReplicaId, now_s: float) -> TokenClaims:
    """Return a token's claims if it is of this cluster, for a transaction of this home, and not expired.

    Raises:
        TokenForeignError: It names another cluster or another home. Without a shared secret
            such a token cannot be verified here, so this is checked before the signature.
        TokenForgedError: It is not a token, or was not signed by this key.
        TokenExpiredError: It has expired.
    """
    found = signed.read(token)
    claims = _claims(found.fields)
    if claims.cluster != cluster:
        raise TokenForeignError(
            "the token belongs to another cluster; make one with tx.token() of this cluster"
        )
    if claims.tid.home != replica:
        raise TokenForeignError(
            f"the token is for a transaction of replica {claims.tid.home}, but this is replica {replica}; "
            "use the address that tx.path() gives",
            home=claims.tid.home,
        )
    found.require(key, _CONTEXT)
    if now_s >= claims.expires_s:
        raise TokenExpiredError(
            "the token has expired; make another with tx.token()", expires_s=claims.expires_s
        )
    return claims


def _claims(fields: dict[str, Any]) -> TokenClaims:
    try:
        tables = fields.get("n")
        return TokenClaims(
            str(fields["c"]),
            Tid.parse(fields["t"]),
            frozenset(Right(right) for right in fields["r"]),
            None if tables is None else frozenset(TableName(name) for name in tables),
            int(fields["e"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise signed.forged() from error
