"""An agent with a bug: it counts its own copy of a commit, and waits for no copy on another replica.

``python -m tests.chaos.planted_agent ...`` in place of ``tidelock.replica_agent.main``.
"""

from __future__ import annotations

import sys
from unittest import mock

from tidelock.replica_agent.main import main
from tidelock.replication.core.copies import Copies, TransactionCopies


def _one_copy_is_enough(_self: Copies, state: TransactionCopies) -> bool:
    return state.persisted


if __name__ == "__main__":
    with mock.patch.object(Copies, "_has_enough", _one_copy_is_enough):
        sys.exit(main())
