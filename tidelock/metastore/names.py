"""The names of databases: a namespace, and the CSN or tag at which it is read. Pure.

``sales_at_4217`` is the namespace ``sales`` at CSN 4217: its tables never change, so Spark may keep what it
was told of them. ``sales_at_q3`` is the namespace at the tag ``q3``, and ``sales`` the newest CSN at each
look-up; both are views of the first. ``tx_load7`` is the transaction of the label ``load7``, to whose tables
rows are written; ``sales_tx_load7`` is the namespace ``sales`` in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: The database that tells of the cluster; no namespace can be read under its name.
SYSTEM: Final = "tidelock"
#: Its view of one row: the newest CSN.
NOW: Final = "now"
#: The beginning of the name of a transaction.
TRANSACTION: Final = "tx_"
#: The text between a namespace and a CSN or a tag.
_AT: Final = "_at_"
_NAMED: Final = re.compile(rf"(?P<namespace>.+?){_AT}(?P<at>[^.]+)")
_WRITTEN: Final = re.compile(r"(?:(?P<namespace>.+?)_)?tx_(?P<label>[a-z0-9_]+)")
_DEFAULT: Final = "default"
_CSN: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class DatabaseName:
    """A database.

    Attributes:
        namespace: The namespace.
        at: A CSN; a tag, in lower case as Hive's client sends it; None: the newest CSN.
        label: The label of the transaction that writes to it; None: it is read.
    """

    namespace: str
    at: int | str | None
    label: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether its tables are always the same."""
        return isinstance(self.at, int)

    @property
    def is_fixed(self) -> bool:
        """Whether its tables are tables for Spark, and no views."""
        return self.is_exact or self.label is not None


def read_name(text: str) -> DatabaseName:
    """Return what the name of a database says."""
    name = text.lower()
    found = _NAMED.fullmatch(name)
    if found is None:
        written = _WRITTEN.fullmatch(name)
        if written is None:
            return DatabaseName(name, None)
        return DatabaseName(written["namespace"] or _DEFAULT, None, written["label"])
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
