"""Grants: signed permissions to send one file of a transaction to another replica than its home. Pure.

The home makes one when it has judged the token and the place, and judges it again when the other replica asks
whether it may take the file; so who takes the file needs not be able to verify it, and does so where it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelock.csnlog.core.ids import ReplicaId, TableName, Tid
from tidelock.errors import TokenExpiredError, TokenForeignError
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.uploads import signed

#: How long an upload may take to begin: a client follows the redirect at once.
GRANT_TTL_S: Final = 60.0

_CONTEXT: Final = b"tidelock upload 1\0"


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """What a grant says.

    Attributes:
        cluster: Id of the cluster.
        tid: The transaction.
        table: Whose folder the file is for.
        place: Where it is to be there.
        overwrite: Whether it may replace another.
        replica: Who takes it.
        expires_s: Unix time, by the home's clock, from which on it is worth nothing.
    """

    cluster: str
    tid: Tid
    table: TableName
    place: StagingPath
    overwrite: bool
    replica: ReplicaId
    expires_s: float


@dataclass(slots=True, eq=False, repr=False)
class UploadGrants:
    """Signs and verifies them.

    Attributes:
        key: See :func:`tokens.key_of`.
        shared: Whether all replicas of the cluster have that key.
        cluster: Id of the cluster.
        replica: This one.
    """

    key: bytes
    shared: bool
    cluster: str
    replica: ReplicaId

    def give(
        self,
        tid: Tid,
        table: TableName,
        place: StagingPath,
        *,
        overwrite: bool,
        replica: ReplicaId,
        now_s: float,
    ) -> str:
        """Return a grant for a file of a transaction of this home."""
        fields = {
            "c": self.cluster,
            "t": str(tid),
            "n": table,
            "p": list(place),
            "o": overwrite,
            "to": replica,
            "e": now_s + GRANT_TTL_S,
        }
        return signed.sign(self.key, _CONTEXT, fields)

    def accept(self, text: str) -> UploadGrant:
        """Return what a grant for this replica says; its home is to be asked before anything is taken.

        Raises:
            TokenForgedError: It is none; or this replica can tell that it was not made in this cluster.
            TokenForeignError: It is of another cluster, or for another replica.
        """
        found, grant = self._read(text)
        if grant.replica != self.replica:
            raise TokenForeignError(
                f"the upload was granted to replica {grant.replica}, and this is {self.replica}; look at "
                "the addresses that the replicas publish (advertise, advertise_api_port)",
                replica=grant.replica,
            )
        if self.shared:
            found.require(self.key, _CONTEXT)
        return grant

    def admit(self, text: str, replica: ReplicaId, now_s: float) -> UploadGrant:
        """Return what a grant of this home says, with which ``replica`` asks for a file.

        Raises:
            TokenForgedError: This life of this home has not made it.
            TokenForeignError: It is for another home, or another replica.
            TokenExpiredError: Its time is over.
        """
        found, grant = self._read(text)
        if grant.tid.home != self.replica or grant.replica != replica:
            raise TokenForeignError(
                f"the upload was granted by {grant.tid.home} to {grant.replica}, and {replica} asks "
                f"{self.replica} about it",
                replica=grant.replica,
            )
        found.require(self.key, _CONTEXT)
        if now_s >= grant.expires_s:
            raise TokenExpiredError(
                f"the upload did not begin within {GRANT_TTL_S:.0f} s; create the file again",
                expires_s=grant.expires_s,
            )
        return grant

    def _read(self, text: str) -> tuple[signed.Signed, UploadGrant]:
        found = signed.read(text)
        fields = found.fields
        try:
            grant = UploadGrant(
                str(fields["c"]),
                Tid.parse(fields["t"]),
                TableName(fields["n"]),
                tuple(str(segment) for segment in fields["p"]),
                bool(fields["o"]),
                ReplicaId(fields["to"]),
                float(fields["e"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise signed.forged() from error
        if grant.cluster != self.cluster:
            raise TokenForeignError("the upload was granted by another cluster; look at the addresses")
        return found, grant
