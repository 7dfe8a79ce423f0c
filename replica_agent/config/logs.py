"""Structured logs: one event per line, the replica in each, tid and CSN where they are known.

Libraries, and the parts of Tidelock below the agent, use the standard library's logging; their lines have the
same form. A line that cannot be written is lost. It must not become an error of the work that it describes:
usually the log and the data share a disk, and an agent whose disk is full has transactions to roll back.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from tidelock.token_text import redact


class _Lossy(io.TextIOBase):
    """Passes text on to a file as long as the file accepts it, without the tokens in it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            self._file.write(redact(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()


class _Level:
    """The lowest level that is logged; an operator changes it while the process runs."""

    lowest = logging.INFO

    @classmethod
    def drop_lower(cls, _logger: object, method: str, event: EventDict) -> EventDict:
        """Drop an event below it; ``exception`` counts as an error."""
        if getattr(logging, method.upper(), logging.ERROR) < cls.lowest:
            raise structlog.DropEvent
        return event


def set_level(level: str) -> None:
    """Set the lowest level that this process logs from now on."""
    _Level.lowest = getattr(logging, level.upper())
    logging.getLogger().setLevel(_Level.lowest)


def configure(replica: str, level: str, form: str) -> None:
    """Set up the logs of this process: JSON lines, or text for people, on standard error."""

    # Not a context variable: callbacks that another thread has posted run in the context of that thread.
    def bound(_logger: object, _method: str, event: EventDict) -> EventDict:
        event.setdefault("replica", replica)
        return event

    lines = cast("TextIO", _Lossy(sys.stderr))
    renderer: Processor = (
        structlog.processors.JSONRenderer(sort_keys=True)
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    common: list[Processor] = [
        bound,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[_Level.drop_lower, *common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(file=lines),
        cache_logger_on_first_use=True,
    )
    others = logging.StreamHandler(lines)
    others.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[others], force=True)
    set_level(level)
