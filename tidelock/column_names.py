"""Names of columns: which ones a table may have, when two are the same, and how texts hold them. Pure.

A name has any letters, and keeps its case. Two names are the same if they differ in case alone, since DuckDB
and Spark find columns without regard to it (docs/adr/0060-names-of-any-letters-and-nested-types.md).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from tidelock.errors import BadRequestError

#: Most bytes of a name in UTF-8, by default.
NAME_BYTES_MAX: Final = 255
#: The beginning of the names of columns that agents add to rows while they work on them.
OWN: Final = "#tidelock:"
#: Columns that a change feed adds to those of the table (rule change-feed).
FEED: Final = frozenset({"_change_type", "_commit_csn", "_commit_time"})

#: Categories of Unicode: control characters, line and paragraph separators, halves of a surrogate pair.
_CONTROL: Final = frozenset({"Cc", "Zl", "Zp", "Cs"})
_ITEM: Final = re.compile(r'\s*(?:"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^,"`][^,]*?)?)\s*(,|\Z)')


def same(name: str) -> str:
    """Return a text that is equal for names that differ in case, or in how a letter is composed, alone."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def problem_of(name: str, bytes_max: int = NAME_BYTES_MAX) -> str | None:
    """Return why no column can have a name, with what to do; None if one can."""
    if not name:
        return "is empty: name it"
    bad = next((letter for letter in name if unicodedata.category(letter) in _CONTROL), None)
    if bad is not None:
        return (
            f"holds U+{ord(bad):04X}, a control character, which SQL, names of folders and headers of files "
            "cannot all have: rename it"
        )
    if (found := len(name.encode())) > bytes_max:
        return f"has {found} bytes; the limit is {bytes_max} (column_name_bytes_max): shorten it"
    if same(name) in FEED:
        return "is reserved for change feeds; rename it"
    if same(name).startswith(OWN):
        return f"begins with {OWN}, as columns that agents add do; rename it"
    return None


def by_same(names: Iterable[str]) -> dict[str, str]:
    """Return names by the text that :func:`same` gives them: SQL means by a name the one of its text."""
    return {same(name): name for name in names}


def split_list(text: str) -> tuple[str, ...]:
    """Return the names of a text such as ``a, b``; those in ``"`` or backticks may have commas and spaces.

    Raises:
        BadRequestError: A quote is not closed, or something follows it.
    """
    names, at = [], 0
    while at < len(text):
        if (match := _ITEM.match(text, at)) is None:
            raise BadRequestError(
                f"{text!r} is not a list of names: separate them by commas, and put names with commas or "
                'quotes into quotes, doubling those inside ("a,b", "the ""big"" one")'
            )
        double, back, plain, _ = match.groups()
        if double or back or plain:
            names.append(double.replace('""', '"') if double else back.replace("``", "`") if back else plain)
        at = match.end()
    return tuple(names)


def join_list(names: Iterable[str]) -> str:
    """Return names as a text that :func:`split_list` reads."""
    return ",".join(
        '"' + name.replace('"', '""') + '"'
        if "," in name or name != name.strip() or name[:1] in '"`'
        else name
        for name in names
    )
