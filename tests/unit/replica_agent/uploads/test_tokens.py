"""Tokens: the rights of a token, and the error for each kind of invalid token."""

from __future__ import annotations

import io
import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import ReplicaId, Tid
from tidelock.errors import (
    AccessDeniedError,
    TokenExpiredError,
    TokenForeignError,
    TokenForgedError,
    TokenRightError,
)
from tidelock.replica_agent.config.logs import _Lossy
from tidelock.replica_agent.uploads.tokens import DEFAULT_RIGHTS, Right, TokenClaims, key_of, sign, verify
from tidelock.token_text import PATTERN, REDACTED, SIGNED, redact
from tidelock.wire.ids import TableName

KEY = b"k" * 32
HOME = ReplicaId("r1")
ORDERS, LINES = TableName("default.orders"), TableName("default.lines")
NOW_S = 1_800_000_000
CLAIMS = TokenClaims("c1", Tid.parse("7-r1-3-9"), frozenset(Right), None, NOW_S + 60)

_tables = st.frozensets(st.sampled_from([ORDERS, LINES]))
_claims = st.builds(
    TokenClaims,
    st.text(),
    st.just(CLAIMS.tid),
    st.frozensets(st.sampled_from(list(Right))),
    st.none() | _tables,
    st.integers(NOW_S + 1, NOW_S + 10**6),
)


def verified(token: str, *, key: bytes = KEY, now_s: float = NOW_S) -> TokenClaims:
    """Verify a token as replica r1 of cluster c1 does."""
    return verify(key, token, cluster="c1", replica=HOME, now_s=now_s)


@given(_claims)
def test_a_token_says_what_was_signed(claims: TokenClaims) -> None:
    """A token is one segment of a path that needs no quoting."""
    token = sign(KEY, claims)
    assert verify(KEY, token, cluster=claims.cluster, replica=HOME, now_s=NOW_S) == claims
    assert SIGNED.fullmatch(token)


@given(st.data())
def test_no_changed_token_is_accepted(data: st.DataObject) -> None:
    """One character changed, omitted or added anywhere never gives the same rights or another error."""
    token = sign(KEY, CLAIMS)
    at = data.draw(st.integers(0, len(token) - 1))
    piece = data.draw(st.text("abcXYZ019-_.=+/ é", max_size=2).filter(lambda text: text != token[at]))
    changed = token[:at] + piece + token[at + 1 :]
    with pytest.raises((TokenForgedError, TokenForeignError)):
        verified(changed)


@given(st.text() | st.from_regex(r"tl1\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*", fullmatch=True))
def test_anything_else_is_forged(text: str) -> None:
    """Any other text in place of a token is forged."""
    with pytest.raises(TokenForgedError):
        verified(text)


@pytest.mark.parametrize(
    ("token", "error"),
    [
        (sign(b"x" * 32, CLAIMS), TokenForgedError),
        (sign(KEY, TokenClaims("c2", CLAIMS.tid, CLAIMS.rights, None, CLAIMS.expires_s)), TokenForeignError),
        (sign(KEY, TokenClaims("c1", Tid.parse("7-r2-3-9"), CLAIMS.rights, None, NOW_S)), TokenForeignError),
        (sign(KEY, TokenClaims("c1", CLAIMS.tid, CLAIMS.rights, None, NOW_S)), TokenExpiredError),
    ],
)
def test_each_failure_has_its_error(token: str, error: type[AccessDeniedError]) -> None:
    """All failures are refusals of access, and no message repeats the token."""
    with pytest.raises(error) as refused:
        verified(token)
    assert isinstance(refused.value, AccessDeniedError)
    assert token not in str(refused.value.to_wire())


def test_rights_and_tables_not_named_are_refused() -> None:
    """A right that is not named, and a table that is not named, are refused."""
    claims = TokenClaims("c1", CLAIMS.tid, frozenset({Right.APPEND}), frozenset({ORDERS}), NOW_S + 60)
    claims.require(Right.APPEND, ORDERS)
    with pytest.raises(TokenRightError, match="allows append, but the request needs replace"):
        claims.require(Right.REPLACE, ORDERS)
    with pytest.raises(
        TokenRightError, match=r"is for default\.orders, but the request is about default\.lines"
    ):
        claims.require(Right.APPEND, LINES)


def test_rights_that_have_to_be_asked_for() -> None:
    """The rights to read, to keep alive, to end and to write by name must be requested by name."""
    others = {right.value for right in set(Right) - set(DEFAULT_RIGHTS)}
    assert others == {"read", "heartbeat", "commit", "by_name"}
    writer = TokenClaims("c1", CLAIMS.tid, frozenset(DEFAULT_RIGHTS), None, NOW_S + 60)
    for right in Right:
        if right in DEFAULT_RIGHTS:
            writer.require_right(right)
        else:
            with pytest.raises(
                TokenRightError, match=f"allows append, replace, but the request needs {right.value}"
            ):
                writer.require_right(right)


def test_keys_are_one_for_each_cluster_and_secret() -> None:
    """With a secret all replicas of a cluster share a key, and clusters differ; else each boot has a key."""
    assert key_of("s", "c1", b"a") == key_of("s", "c1", b"b")
    assert len({key_of("s", "c1", b"a"), key_of("s", "c2", b"a"), key_of("t", "c1", b"a"), b"s"}) == 4
    assert key_of("", "c1", b"a") == b"a"


@given(_claims, st.text(), st.text())
def test_what_is_logged_holds_no_token(claims: TokenClaims, before: str, after: str) -> None:
    """A log line holds no token, wherever it was in the line."""
    token = sign(KEY, claims)
    out = io.StringIO()
    _Lossy(out).write(f"{before}/transactions/{token}/default/{after}")
    assert token not in out.getvalue()
    assert re.fullmatch(PATTERN, token)  # the pattern that Spark is configured to hide
    assert f"/transactions/{REDACTED}/default/{after}" in redact(f"/transactions/{token}/default/{after}")


@given(_claims, st.integers(0, 3))
def test_what_is_logged_of_a_rename_holds_no_token(claims: TokenClaims, times: int) -> None:
    """The destination is a path in a query: percent-encoded, once or more."""
    token = sign(KEY, claims)
    path = f"/transactions/{token}/default/t/_temporary/0"
    for _ in range(times):
        path = quote(path, safe="")
    target = f"/webhdfs/v1/transactions/{token}/default/t?op=RENAME&destination={path}"
    out = io.StringIO()
    _Lossy(out).write(f"reader.failed target={target!r}")
    for text in (out.getvalue(), re.sub(PATTERN, "", target)):
        assert token.split(".")[2] not in text
    assert out.getvalue().count(REDACTED) == 2
