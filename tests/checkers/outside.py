"""A checker that others have written: `adya`, a Rust program after Elle, judges histories of lists.

It knows nothing of Tidelock, nor of `tests/checkers`; the format of the histories is all that they share.

    cargo install adya --version 0.1.0 --no-default-features --root FOLDER

makes it in some minutes (the features left out are drivers of databases). `make test-all` does that where
cargo is installed. `program` finds it where TIDELOCK_ADYA says, beside the environment's Python, or on the
PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

#: Snapshot isolation, and a process sees its own past: what Tidelock promises where all appends to a key
#: exclude each other. The program knows no other stores: where rows are only added, two transactions at the
#: same time may add to one list, and it takes their order for that of begins.
MODEL: Final = "strong-session-snapshot-isolation"
#: The level for lists of rows, where it finds aborted reads, half reads, and two orders of the appends.
MODEL_OF_ROWS: Final = "read-committed"
#: A history of an hour takes seconds.
_TIMEOUT_S: Final = 300.0


class Judgement(IntEnum):
    """The exit code of the program."""

    VALID = 0
    ANOMALIES = 1
    #: The history says nothing, or a search took too long.
    UNKNOWN = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of the program about one history.

    Attributes:
        judgement: Its judgement.
        text: Its report.
    """

    judgement: Judgement
    text: str


def program() -> Path | None:
    """Return the program; None if it is not installed."""
    if named := os.environ.get("TIDELOCK_ADYA"):
        return Path(named)
    beside = Path(sys.prefix) / "adya" / "bin" / "adya"
    found = str(beside) if beside.exists() else shutil.which("adya")
    return Path(found) if found else None


def judged(adya: Path, history: Path, *, model: str = MODEL) -> Verdict:
    """Let it judge a history of lists.

    Args:
        adya: The program.
        history: The history.
        model: The name of a level, as the program knows it.

    Raises:
        OSError, subprocess.TimeoutExpired: It does not run.
        ValueError: It cannot read the history; the message is its own.
    """
    done = subprocess.run(
        [adya, "check", "-m", "list-append", "-c", model, history],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    text = done.stdout + done.stderr
    if done.returncode not in set(Judgement):
        raise ValueError(f"expected a history that {adya} can read, found {history}: {text}")
    return Verdict(Judgement(done.returncode), text)
