"""Names of the snapshot file system: parsing of request targets. Pure.

The tree is ``/snapshots/<csn>/<namespace>/<table>/<folder>/<part>.parquet`` (rule snapshot-folders); a tag
may stand for its CSN (rule tags). A partition folder is named by the *escaped* partition path of the catalog:
the client percent-encodes that name once more, so one decoding restores it.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from tidelock.csnlog.core.ids import CSN_MAX, Csn, PartId, parse_part_id
from tidelock.errors import BadRequestError, RefusedError
from tidelock.wire.ids import TableName
from tidelock.wire.tags import is_tag_name

COMMON_METADATA = "_common_metadata"
PART_SUFFIX = ".parquet"

_COMBINED = re.compile(r"combined1-([^/]+)-([1-9][0-9]{0,2})-([1-9][0-9]{0,18})\.parquet", re.ASCII)
_CSN = re.compile(r"0|[1-9][0-9]{0,18}")


class NoSuchPathError(RefusedError):
    """The name does not exist at a CSN that can be served here: the only case of "file not found"."""

    http_status = 404


class RequestTarget(msgspec.Struct, frozen=True):
    """A decoded request target: path segments (empty ones dropped), query fields (names in lower case)."""

    segments: tuple[str, ...]
    query: dict[str, str]

    @property
    def path(self) -> str:
        """The path for messages."""
        return "/" + "/".join(self.segments)


class CombinedName(msgspec.Struct, frozen=True):
    """The name of a file that is made of several parts of its folder.

    It says which they are at any CSN that is served, so each replica finds the same ones.

    Attributes:
        last: The last of them, in the order of (creation CSN, part id).
        parts: Their number; the others precede it in this order.
        length: Bytes of all of them together. Another number shows that the name is of another CSN.
    """

    last: PartId
    parts: int
    length: int

    def __str__(self) -> str:
        return f"combined1-{self.last}-{self.parts}-{self.length}{PART_SUFFIX}"


class SnapshotPath(msgspec.Struct, frozen=True):
    """A position in the snapshot tree; the levels below a None are None as well.

    Attributes:
        csn: The snapshot, None for ``/`` and ``/snapshots``, and where a tag names it.
        tag: The tag that names the snapshot.
        namespace: First half of the table's name.
        table: Full table name.
        inner: Path below the table's folder, ``""`` for that folder.
    """

    csn: Csn | None = None
    namespace: str | None = None
    table: TableName | None = None
    inner: str = ""
    tag: str | None = None


def parse_target(raw: str) -> RequestTarget:
    """Decode a request target as it was in the request line.

    Hadoop's client sends non-ASCII names as raw UTF-8 bytes, others percent-encode them; both arrive here,
    raw bytes as surrogate escapes or as characters.

    Raises:
        BadRequestError: The path is not UTF-8.
    """
    path, _, query = raw.partition("?")
    try:
        text = unquote_to_bytes(path.encode("utf-8", "surrogateescape")).decode()
    except UnicodeDecodeError:
        raise BadRequestError(
            f"the path {path!a} is not UTF-8; percent-encode the UTF-8 bytes of each name"
        ) from None
    fields = parse_qsl(
        query.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), keep_blank_values=True
    )
    return RequestTarget(
        tuple(part for part in text.split("/") if part), {name.lower(): value for name, value in fields}
    )


def parse_csn(text: str) -> Csn:
    """Read the CSN of a path; BadRequestError if it is malformed: it must never look like a missing file."""
    if not _CSN.fullmatch(text) or int(text) > CSN_MAX:
        raise BadRequestError(
            f"{text!a} is not a CSN: expected a decimal number from 0 to {CSN_MAX}, without leading zeros, "
            "or the name of a tag"
        )
    return Csn(int(text))


def parse_snapshot(segments: tuple[str, ...]) -> SnapshotPath:
    """Read the position from path segments that begin with ``snapshots``; no segments: the root.

    Raises:
        BadRequestError: The CSN is malformed.
        NoSuchPathError: The path is in another tree.
    """
    if not segments or segments == ("snapshots",):
        return SnapshotPath()
    if segments[0] != "snapshots":
        raise NoSuchPathError(
            f"/{segments[0]} does not exist: tables are below /snapshots/<csn>/<namespace>/<table>"
        )
    csn, tag = (None, segments[1]) if is_tag_name(segments[1]) else (parse_csn(segments[1]), None)
    match segments[2:]:
        case ():
            return SnapshotPath(csn, tag=tag)
        case (namespace,):
            return SnapshotPath(csn, namespace, tag=tag)
        case (namespace, name, *inner):
            return SnapshotPath(csn, namespace, TableName(f"{namespace}.{name}"), "/".join(inner), tag)
    raise AssertionError(segments)


def part_of(inner: str) -> PartId | None:
    """Return the part that a path below a table names, or None when it cannot be a part's file."""
    name = inner.rpartition("/")[2]
    return _part_id(name.removesuffix(PART_SUFFIX)) if name.endswith(PART_SUFFIX) else None


def combined_of(inner: str) -> CombinedName | None:
    """Return the combined file that a path below a table names, or None when it cannot be one."""
    match = _COMBINED.fullmatch(inner.rpartition("/")[2])
    last = _part_id(match[1]) if match else None
    return CombinedName(last, int(match[2]), int(match[3])) if match and last else None


def _part_id(text: str) -> PartId | None:
    try:
        parse_part_id(text)
    except ValueError:
        return None
    return PartId(text)
