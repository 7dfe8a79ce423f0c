"""An agent with a bug: it counts its own copy of a commit, and waits for no copy on another replica.

``python -m tests.chaos.planted_agent ...`` in place of ``tidelock.replica_agent.main``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from unittest import mock

from tidelock.csnlog.core.ids import ReplicaId
from tidelock.replica_agent.main import main
from tidelock.replication.core.copies import Copies

_as_it_is = Copies.__init__


def _one_copy_is_enough(
    self: Copies, home: ReplicaId, copies: int, disks: Mapping[ReplicaId, str], *, thorough: bool = True
) -> None:
    _as_it_is(self, home, min(copies, 1), disks, thorough=thorough)


if __name__ == "__main__":
    with mock.patch.object(Copies, "__init__", _one_copy_is_enough):
        sys.exit(main())
