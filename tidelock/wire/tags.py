"""Bodies of /api/v1/tags, and the rule for names of tags. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import msgspec

from tidelock.wire.rows import Row, instant

#: Longest name of a tag; its path is a folder.
TAG_NAME_MAX: Final = 64

_NAME: Final = re.compile(r"(?!\d+\Z)[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)


def is_tag_name(text: str) -> bool:
    """Return whether a text may name a tag: it begins like a word, is a folder's name, and no number."""
    return len(text) <= TAG_NAME_MAX and _NAME.fullmatch(text) is not None


class TagRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /tags.

    Attributes:
        name: The tag.
        csn: The CSN that it names; default: the newest that is applied on `copies` replicas.
        at_ms: Instead of `csn`: the newest CSN whose effective time is not after this (Unix, ms).
        min_csn: Without both: this CSN or a newer one.
        keep_s: The tag ends after so many seconds; default: it stays until it is ended.
        move: Whether a tag of this name may exist, and names this CSN from now on.
    """

    name: str
    csn: int | None = None
    at_ms: int | None = None
    min_csn: int | None = None
    keep_s: float | None = None
    move: bool = False


class TagInfo(Row, frozen=True):
    """A tag.

    Attributes:
        name: Its name, and the name of its folder below `/snapshots`.
        csn: The CSN that it names.
        made_csn: The commit that has made or moved it.
        made_ms: Effective time of that commit (Unix, ms).
        keep_s: The tag ends so many seconds later; None: it stays until it is ended.
    """

    name: str
    csn: int
    made_csn: int
    made_ms: int
    keep_s: float | None = None

    @property
    def made(self) -> datetime | None:
        """When it was made or moved (UTC)."""
        return instant(self.made_ms)


class EndedTag(Row, frozen=True):
    """A tag that was ended, and the CSN of the commit from which on it holds nothing."""

    name: str
    csn: int
