"""Names of the snapshot file system."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import CSN_MAX, Csn
from tidelock.errors import BadRequestError
from tidelock.replica_agent.readers.paths import (
    NoSuchPathError,
    SnapshotPath,
    parse_csn,
    parse_snapshot,
    parse_target,
    part_of,
)
from tidelock.wire.ids import TableName

SEGMENT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(SEGMENT))
def test_a_percent_encoded_path_is_read_back(names: list[str]) -> None:
    """A name with any characters except slashes arrives unchanged."""
    segments = tuple(name.replace("/", "%2F") for name in names)
    raw = "/" + "/".join(quote(segment, safe="") for segment in segments)
    assert parse_target(raw).segments == segments


@pytest.mark.parametrize(
    "raw",
    [
        "/a/stadt=Zürich",  # as aiohttp's pure-Python parser hands it on
        "/a/stadt=Zürich".encode().decode("ascii", "surrogateescape"),
        "/a/stadt=Z%C3%BCrich",
    ],
)
def test_raw_and_encoded_utf8_are_one_name(raw: str) -> None:
    """Hadoop's client sends raw UTF-8 bytes, others percent-encode: the same name."""
    assert parse_target(raw).segments == ("a", "stadt=Zürich")


def test_what_was_escaped_for_the_folder_stays_escaped() -> None:
    """One decoding undoes the client's encoding and keeps the encoding of the partition path."""
    assert parse_target("/city=a%252Fb").segments == ("city=a%2Fb",)


def test_empty_segments_are_dropped_and_dots_are_names() -> None:
    """Doubled and trailing slashes mean nothing, and no name leads out of the tree."""
    assert parse_target("//snapshots/5//a/../b/").segments == ("snapshots", "5", "a", "..", "b")


def test_query_names_are_case_insensitive() -> None:
    """Query names are compared without case, as Hadoop's own server does; values stay."""
    assert parse_target("/x?op=OPEN&Offset=5&user.name=Jürgen").query == {
        "op": "OPEN",
        "offset": "5",
        "user.name": "Jürgen",
    }


def test_a_path_that_is_not_utf8_is_malformed() -> None:
    """Bytes that are not text are a malformed request, not a missing file."""
    with pytest.raises(BadRequestError, match="UTF-8"):
        parse_target("/snapshots/%FF")


@pytest.mark.parametrize(("text", "csn"), [("0", 0), ("42", 42), (str(CSN_MAX), CSN_MAX)])
def test_a_csn_has_one_decimal_form(text: str, csn: int) -> None:
    """A CSN has exactly one decimal form."""
    assert parse_csn(text) == csn


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "007", "1.0", "latest", "٣", " 1", str(CSN_MAX + 1), "9" * 40]
)
def test_a_malformed_csn_is_never_a_missing_file(text: str) -> None:
    """Any other text in place of a CSN is a malformed request."""
    with pytest.raises(BadRequestError, match="CSN"):
        parse_csn(text)


@pytest.mark.parametrize(
    ("segments", "path"),
    [
        ((), SnapshotPath()),
        (("snapshots",), SnapshotPath()),
        (("snapshots", "7"), SnapshotPath(Csn(7))),
        (("snapshots", "7", "sales"), SnapshotPath(Csn(7), "sales")),
        (("snapshots", "7", "sales", "orders"), SnapshotPath(Csn(7), "sales", TableName("sales.orders"))),
        (("snapshots", "7", "a", "b", "p=1", "q=2"), SnapshotPath(Csn(7), "a", TableName("a.b"), "p=1/q=2")),
    ],
)
def test_places_in_the_tree(segments: tuple[str, ...], path: SnapshotPath) -> None:
    """Each depth of the tree is parsed to its own kind of path."""
    assert parse_snapshot(segments) == path


def test_another_tree_does_not_exist() -> None:
    """Only /snapshots exists."""
    with pytest.raises(NoSuchPathError):
        parse_snapshot(("transactions", "x"))


@pytest.mark.parametrize(
    ("inner", "part"),
    [
        ("r1-2-3.parquet", "r1-2-3"),
        ("p=1/q=2/r1-2-3.parquet", "r1-2-3"),
        ("p=1", None),
        ("p=x.parquet", None),
        ("R1-2-3.parquet", None),
        ("r1-2-3.parquet/x", None),
        ("_common_metadata", None),
        ("", None),
    ],
)
def test_parts_are_known_by_their_names(inner: str, part: str | None) -> None:
    """A part's file is recognised by the form of its name; a partition may have any name."""
    assert part_of(inner) == part


@pytest.mark.parametrize("name", ["2026Q3", "v1.0", "A", "x" * 64])
def test_a_tag_stands_for_its_csn(name: str) -> None:
    """A name that is no number is that of a tag; the rest of the path is below the same folders."""
    found = parse_snapshot(("snapshots", name, "default", "t", "y=1"))
    assert found == SnapshotPath(None, "default", TableName("default.t"), "y=1", name)


@pytest.mark.parametrize("name", ["-1", "..", "a b", "x" * 65, "é"])
def test_what_is_neither_csn_nor_tag_is_malformed(name: str) -> None:
    """It is an error of the request: a missing file would be rows that are silently missing."""
    with pytest.raises(BadRequestError, match="or the name of a tag"):
        parse_snapshot(("snapshots", name))
