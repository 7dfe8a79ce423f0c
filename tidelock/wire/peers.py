"""Bodies below /peer/v1, which agents exchange: pushes, hints, uploads, the state of a peer. Pure.

The patterns are checked when a body is decoded, since a part id becomes a file name. The header of a push
(docs/protocol.md#stage) holds :class:`PartMeta` too, as msgpack.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tidelock.wire.ids import Csn, PartId, ReplicaId, TableId

#: A Parquet range of a table; one that no record names yet, with rows that landed, which stay although its
#: transaction was aborted (rule landing); or the stored entries of a large transaction.
PartKind = Literal["part", "landed", "manifest"]

_Part = Annotated[PartId, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_]{0,31}-[0-9]{1,18}-[0-9]{1,18}\Z")]
_Checksum = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
_Form = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{16}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class PartMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a replica must know of a part besides its bytes.

    Attributes:
        part: Part id, unique forever.
        table: Full table name; empty for a manifest, and for a copy that was made before its table was known.
        path: Hive-style partition path, ``""`` without partitions.
        rows: Rows of the part; 0 for a manifest.
        length: Bytes of the range.
        checksum: XXH3-128 of these bytes, 32 hexadecimal digits.
        stats: Column statistics, or None if they are not computed yet.
        kind: ``part``, ``landed`` or ``manifest``.
        form: Parts of the same form differ in their rows alone: they have one row group, no page index, and
            footers with the same schema and marks. None: it is not known.
        source: The part whose bytes it shares, or that had them first; None: it came with bytes of its own.
        columns_csn: The CSN at which its table had the columns of these bytes; None: that of its creation.
    """

    part: _Part
    table: TableId
    path: str
    rows: _Count
    length: _Count
    checksum: _Checksum
    stats: dict[str, Any] | None = None
    kind: PartKind = "part"
    form: _Form | None = None
    source: _Part | None = None
    columns_csn: Csn | None = None

    @property
    def origin(self) -> PartId:
        """The part that had its bytes first: all parts with one origin have the same bytes."""
        return self.source or self.part


class Held(msgspec.Struct, frozen=True):
    """A peer's answer to a push: a statement about its current state, which may be repeated or lost.

    Attributes:
        replica: The replica that answers.
        disk: Its data directory's id; the answer counts only while ``replicas/<id>/session`` shows this id.
        boot: Start number of its agent.
        snapshot_csn: Its snapshot CSN.
        held: Tids whose files, rows and prepared marks are durable there.
        refused: Tids that it cannot accept now, with the reason. A tid in neither list is still in transit.
        arrived: For tids in transit, the bytes of their parts that are there so far; earlier versions do not
            say.
    """

    replica: ReplicaId
    disk: str
    boot: int
    snapshot_csn: Csn
    held: tuple[str, ...]
    refused: dict[str, str] = {}
    arrived: dict[str, int] = {}


class PartWord(msgspec.Struct, frozen=True):
    """Answer of GET /peer/v1/parts/{part}: whether the replica holds a part, whose bytes it has just read.

    Attributes:
        reading: It is reading the bytes still, and ``held`` says nothing: ask again.
    """

    replica: ReplicaId
    disk: str
    snapshot_csn: Csn
    held: bool
    reading: bool = False


class PartsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /parts at the data port: small parts to be sent in one answer (docs/protocol.md#parts)."""

    parts: list[_Part]


class ForgetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /peer/v1/forget: transactions that were rolled back; parts that others withdrew."""

    tids: list[str] = []
    parts: list[PartId] = []


class HintRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /peer/v1/hint: parts of a transaction that are durable at `holder`."""

    tid: str
    holder: ReplicaId
    parts: list[PartMeta]


class UploadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /peer/v1/uploads: `replica` is to receive the file of a grant."""

    grant: str
    replica: ReplicaId


class UploadBegun(msgspec.Struct, frozen=True):
    """Answer of ``POST /peer/v1/uploads``: the part that the file may become, and its maximal length."""

    part: PartId
    bytes_max: int


class UploadedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /peer/v1/uploads/{part}: `replica` has received the file."""

    tid: str
    table: TableId
    replica: ReplicaId
    length: _Count
    checksum: _Checksum


class FailedUploadRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /peer/v1/uploads/{part}/failed: `replica` has not received the file."""

    tid: str
    table: TableId
    replica: ReplicaId


class PeerOutcome(msgspec.Struct, frozen=True):
    """The answer of a home about its own transaction: running, committed, aborted or unknown."""

    outcome: str


class StateDigest(msgspec.Struct, frozen=True):
    """Answer of ``GET /peer/v1/digests/{csn}``: what a replica shows at a CSN.

    Attributes:
        replica: The replica that answers.
        csn: The CSN.
        form: The way in which rows are counted; digests of different ways are not compared.
        zxid: Of the record at this CSN; 0 = not known. Replicas that have applied another record there follow
            another history of the log (rule follow), and are not compared.
        tables: By table the sum of the XXH3-128 of its version and of its visible parts (hex).
    """

    replica: ReplicaId
    csn: Csn
    form: int
    zxid: int
    tables: dict[TableId, str]


class PeerStatus(msgspec.Struct, frozen=True):
    """Answer of ``GET /peer/v1/status``.

    Attributes:
        id: The replica that answers.
        disk: Id of its data directory.
        boot: Start number of its agent.
        state: State of its agent.
        snapshot_csn: Its snapshot CSN.
        free_bytes: Of the disk of its data directory.
        time_ms: Its wall clock (Unix, ms); 0 = not told.
    """

    id: ReplicaId
    disk: str
    boot: int
    state: str
    snapshot_csn: Csn
    free_bytes: int = 0
    time_ms: int = 0


class CloneManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``POST /peer/v1/clones/{name}``: the catalog that a replica sends to another one.

    Attributes:
        ready: Whether it is written; if not, repeat the request.
        format: Catalog format of the sender, 0 if it is too old to tell.
        csn: The snapshot CSN of its rows.
        length: Bytes of the file.
        checksum: XXH3-128 of these bytes, 32 hexadecimal digits.
    """

    ready: bool
    format: _Count = 0
    csn: Csn = Csn(0)
    length: _Count = 0
    checksum: str = ""


class Nothing(msgspec.Struct, frozen=True):
    """The empty object: the answer of routes that return no data."""
