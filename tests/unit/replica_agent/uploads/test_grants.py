"""Grants of uploads to other replicas: who may receive which file, and who verifies it."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId, Tid
from tidelock.errors import TokenExpiredError, TokenForeignError, TokenForgedError
from tidelock.replica_agent.uploads.grants import GRANT_TTL_S, UploadGrants
from tidelock.replica_agent.uploads.tokens import Right, TokenClaims
from tidelock.replica_agent.uploads.tokens import sign as sign_token

R1, R2, R3 = ReplicaId("r1"), ReplicaId("r2"), ReplicaId("r3")
TID = Tid(Csn(7), R1, 2, 3)
TABLE = TableId("default.orders")
PLACE = ("_temporary", "0", "_temporary", "attempt_1", "stadt=Zürich", "part-0.parquet")
KEY, OTHER = b"k" * 32, b"o" * 32
NOW = 1000.0


def grants(replica: ReplicaId, key: bytes = KEY, *, shared: bool = True, cluster: str = "c") -> UploadGrants:
    """Return the grants of one replica."""
    return UploadGrants(key, shared=shared, cluster=cluster, replica=replica)


def given_one() -> str:
    """Return a grant of r1 to r2."""
    return grants(R1).give(TID, TABLE, PLACE, overwrite=False, replica=R2, now_s=NOW)


def test_a_grant_says_the_same_to_both() -> None:
    """The receiving replica and the home read the same content in a grant."""
    text = given_one()
    accepted, admitted = grants(R2).accept(text), grants(R1).admit(text, R2, NOW)
    assert accepted == admitted
    assert (accepted.tid, accepted.table, accepted.place, accepted.overwrite) == (TID, TABLE, PLACE, False)


def test_without_a_shared_key_the_home_alone_can_tell() -> None:
    """Without a shared key the receiver accepts a grant unverified, and the home refuses a forged one."""
    forged = grants(R1, OTHER).give(TID, TABLE, PLACE, overwrite=True, replica=R2, now_s=NOW)
    assert grants(R2, shared=False).accept(forged).tid == TID
    with pytest.raises(TokenForgedError):
        grants(R1).admit(forged, R2, NOW)
    with pytest.raises(TokenForgedError):
        grants(R2).accept(forged)


def test_each_grant_that_is_not_good() -> None:
    """Grants for another replica, home or cluster, expired grants and other texts are refused."""
    text = given_one()
    for wrong_taker in (grants(R3), grants(R2, cluster="d")):
        with pytest.raises(TokenForeignError):
            wrong_taker.accept(text)
    for home, asking in ((grants(R1), R3), (grants(R3), R2), (grants(R1, cluster="d"), R2)):
        with pytest.raises(TokenForeignError):
            home.admit(text, asking, NOW)
    grants(R1).admit(text, R2, NOW + GRANT_TTL_S - 0.1)
    with pytest.raises(TokenExpiredError):
        grants(R1).admit(text, R2, NOW + GRANT_TTL_S)
    claims = TokenClaims("c", TID, frozenset(Right), None, 9999)
    for wrong in ("", "tl1.x.y", text[:-1], text + "A", sign_token(KEY, claims)):
        with pytest.raises(TokenForgedError):
            grants(R2).accept(wrong)
