"""The names of databases: a namespace, and the CSN or tag at which it is read. Pure.

``sales_at_4217`` is the namespace ``sales`` at CSN 4217: its tables never change, so Spark may keep what it
was told of them. ``sales_at_q3`` is the namespace at the tag ``q3``, and ``sales`` the newest CSN at each
look-up; both are views of the first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: The database that tells of the cluster; no namespace can be read under its name.
SYSTEM: Final = "tidelock"
#: Its view of one row: the newest CSN.
NOW: Final = "now"
#: The text between a namespace and a CSN or a tag.
_AT: Final = "_at_"
_NAMED: Final = re.compile(rf"(?P<namespace>.+?){_AT}(?P<at>[^.]+)")
_CSN: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class DatabaseName:
    """A database.

    Attributes:
        namespace: The namespace.
        at: A CSN; a tag, in lower case as Hive's client sends it; None: the newest CSN.
    """

    namespace: str
    at: int | str | None

    @property
    def is_exact(self) -> bool:
        """Whether its tables are always the same."""
        return isinstance(self.at, int)


def read_name(text: str) -> DatabaseName:
    """Return what the name of a database says."""
    found = _NAMED.fullmatch(text.lower())
    if found is None:
        return DatabaseName(text.lower(), None)
    at = found["at"]
    return DatabaseName(found["namespace"], int(at) if _CSN.fullmatch(at) else at)


def suffix_of(csn: int) -> str:
    """Return what makes the name of a namespace that of its tables at a CSN."""
    return f"{_AT}{csn}"


def matching(names: list[str], pattern: str | None) -> list[str]:
    """Return the names that a pattern of Hive means: ``*`` for any text, ``|`` between alternatives."""
    alternatives = (pattern or "*").split("|")
    wanted = "|".join(".*".join(map(re.escape, one.split("*"))) for one in alternatives)
    return [name for name in names if re.fullmatch(wanted, name, re.IGNORECASE)]
