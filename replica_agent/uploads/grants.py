"""Grants: signed permissions to send one file of a transaction to another replica than its home. Pure.

The home makes a grant when it has checked the token and the path, and checks the grant again when the other
replica asks whether it may receive the file. So the other replica need not be able to verify the grant, but
verifies it where it can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from tidelock.csnlog.core.ids import ReplicaId, TableId, Tid
from tidelock.errors import TokenExpiredError, TokenForeignError
from tidelock.replica_agent.transactions.staging_paths import StagingPath
from tidelock.replica_agent.uploads import signed

#: Seconds within which an upload must begin: a client follows the redirect at once.
GRANT_TTL_S: Final = 60.0

_CONTEXT: Final = b"tidelock upload 1\0"


class UploadGrant(msgspec.Struct, frozen=True):
    """The content of a grant.

    Attributes:
        cluster: Id of the cluster.
        tid: The transaction.
        table: The table whose folder the file is for.
        place: The path of the file in that folder.
        overwrite: Whether it may replace another file.
        replica: The replica that receives it.
        expires_s: When it expires, by the monotonic clock of the home in seconds.
    """

    cluster: str
    tid: Tid
    table: TableId
    place: StagingPath
    overwrite: bool
    replica: ReplicaId
    expires_s: float


@dataclass(slots=True, eq=False, repr=False)
class UploadGrants:
    """Signs and verifies grants.

    Attributes:
        key: See :func:`tokens.key_of`.
        shared: Whether all replicas of the cluster have that key.
        cluster: Id of the cluster.
        replica: This replica.
    """

    key: bytes
    shared: bool
    cluster: str
    replica: ReplicaId

    def give(
        self,
        tid: Tid,
        table: TableId,
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
        """Return the content of a grant for this replica; its home must be asked before any byte is received.

        Raises:
            TokenForgedError: It is not a grant, or this replica can tell that this cluster did not make it.
            TokenForeignError: It belongs to another cluster, or is for another replica.
        """
        found, grant = self._read(text)
        if grant.replica != self.replica:
            raise TokenForeignError(
                f"the upload was granted to replica {grant.replica}, but this is replica {self.replica}; "
                "check the addresses that the replicas publish (advertise, advertise_api_port)",
                replica=grant.replica,
            )
        if self.shared:
            found.require(self.key, _CONTEXT)
        return grant

    def admit(self, text: str, replica: ReplicaId, now_s: float) -> UploadGrant:
        """Return the content of a grant of this home, with which ``replica`` requests a file.

        Raises:
            TokenForgedError: This boot of this home did not make it.
            TokenForeignError: It is for another home, or another replica.
            TokenExpiredError: It has expired.
        """
        found, grant = self._read(text)
        if grant.tid.home != self.replica or grant.replica != replica:
            raise TokenForeignError(
                f"the upload was granted by {grant.tid.home} to {grant.replica}, but {replica} asks "
                f"{self.replica}; check the addresses that the replicas publish",
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
                TableId(fields["n"]),
                tuple(str(segment) for segment in fields["p"]),
                bool(fields["o"]),
                ReplicaId(fields["to"]),
                float(fields["e"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise signed.forged() from error
        if grant.cluster != self.cluster:
            raise TokenForeignError(
                "the upload was granted by another cluster; check the addresses that the replicas publish"
            )
        return found, grant
