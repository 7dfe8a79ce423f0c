"""Seeds that found something, as command lines of the runner; the slow tests run them again."""

from __future__ import annotations

from typing import Final

#: Kinds that came later than some of these: without them a seed draws the faults that it drew then.
_LATER: Final = (
    "--without",
    (
        "pack truncated,catalog truncated,isolated,one-way cut from ZooKeeper,one-way cut from clients,"
        "replicas lost"
    ),
)

#: Each with the fault that it found, here or in a judge.
KEPT: Final[tuple[tuple[str, ...], ...]] = (
    # A refused commit that nobody waited for was logged as an unforeseen error.
    ("--seed", "5", "--minutes", "3", "--replicas", "4", "--sessions", "0", *_LATER),
    # Requests to an agent with a damaged catalog were answered with an internal error, and did not stop it.
    ("--seed", "301", "--minutes", "3", "--replicas", "4", "--sessions", "2", *_LATER),
    # A streaming query whose first batch had failed read rows twice.
    ("--seed", "1001", "--minutes", "3", "--replicas", "4", "--sessions", "2", *_LATER),
    # Clients of a replica that stopped for a damaged catalog were told to call an operator.
    ("--seed", "2001", "--minutes", "3", "--replicas", "4", "--sessions", "2", *_LATER),
    # A fetch waited for a holder that was silent until its commit was refused.
    ("--seed", "15178555", "--minutes", "3", "--replicas", "4", "--sessions", "2", *_LATER),
    # A serializable transaction lost the race for its commit each time.
    ("--seed", "4242", "--minutes", "3", "--replicas", "4", "--sessions", "2", *_LATER),
    # Commits were refused while ZooKeeper elected a leader.
    ("--seed", "492834084", "--minutes", "3", "--replicas", "3", "--sessions", "2", *_LATER),
    # The audit missed parts of dropped tables that were collected rightly.
    ("--seed", "1601", "--minutes", "3", "--workloads", "table_lives,bank", "--sessions", "0", *_LATER),
)
