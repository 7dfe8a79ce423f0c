"""The exit codes of commands and agents: the one table, shown in docs/command-line.md too."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from tidelock.errors import (
    BadRequestError,
    CommitUnknownError,
    ConfigError,
    CorruptError,
    RefusedError,
    TidelockError,
    UnavailableError,
)


class Exit(IntEnum):
    """Exit codes; `meaning` is the text of the table."""

    meaning: str

    OK = 0, "done"
    REFUSED = 1, "refused: certainly nothing was changed"
    USAGE = 2, "the command line, an argument or a setting is wrong; nothing was changed"
    UNAVAILABLE = (
        3,
        "no agent or ZooKeeper can answer now; nothing was decided, the same command may be repeated",
    )
    UNKNOWN = 4, "a commit was requested and its outcome is not known; `tidelock outcome TID` shows it"
    CORRUPT = 5, "data or state contradicts a checksum; nothing doubtful was shown"
    FOUND = 6, "`tidelock audit` has found a difference; nothing was changed"
    ABSENT = 7, "`tidelock label` has found no commit under the label"
    INTERNAL = 70, "an internal error of tidelock; `tidelock --debug ...` shows its traceback"
    INTERRUPTED = 130, "interrupted (Ctrl-C)"

    def __new__(cls, code: int, meaning: str) -> Self:
        """Create a code with its meaning."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


def exit_of(error: BaseException) -> Exit:
    """Return the exit code for the error that ended a command or an agent."""
    match error:
        case BadRequestError() | ConfigError():
            return Exit.USAGE
        case RefusedError():
            return Exit.REFUSED
        case CommitUnknownError():
            return Exit.UNKNOWN
        case UnavailableError():
            return Exit.UNAVAILABLE
        case CorruptError():
            return Exit.CORRUPT
        case TidelockError():
            return Exit.INTERNAL
        case KeyboardInterrupt():
            return Exit.INTERRUPTED
        case _:
            return Exit.INTERNAL


def table() -> str:
    """Return the table as text, one line for each code."""
    return "\n".join(f"{code.value:>4}  {code.meaning}" for code in Exit)
