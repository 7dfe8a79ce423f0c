"""A start forgets the newest commit that was applied, and remembers it many commits later.

That is what rows look like that the catalog had acknowledged before they were durable, until they come
again by some other way. A replica that misses them for good would notice, and stop, when they are removed.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from tidelock.replica_agent.storage.catalog import Catalog

#: So many CSNs later it is there again.
_LATER: Final = 60
_FORGET: Final = """
    UPDATE parts SET creation_csn = creation_csn + ?
    WHERE creation_csn = (SELECT max(creation_csn) FROM parts WHERE removal_csn IS NULL)
"""


def plant() -> None:
    """Let this process open its catalog so."""
    prepare = Catalog._prepare

    def forget(self: Catalog, initial: dict[str, Any]) -> None:
        prepare(self, initial)
        with contextlib.closing(self._connect()) as db:
            db.execute(_FORGET, (_LATER,))

    Catalog._prepare = forget  # type: ignore[method-assign]
