"""The agent's log: every line has one form, from any library."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

#: Logs one event by structlog, and two by the standard library: one of them in another thread.
SCRIPT = """
    import logging, sys, threading, structlog
    from tidelock.replica_agent.config.logs import configure

    configure("r1", *sys.argv[1:])
    structlog.get_logger("agent").info("started", csn=7)
    structlog.get_logger("agent").debug("not shown")
    def other():
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("tidelock.zookeeper").exception("session %#x", 10)
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    structlog.get_logger("agent").info("ended", replica="r2")
"""


def said(form: str) -> list[str]:
    """Return the lines that the script writes."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), "info", form],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_events_are_json_objects_of_one_line() -> None:
    """Each event is one JSON object with replica, level and time, a traceback inside it."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in said("json")]
    started, failed, ended = lines
    assert (started["event"], started["replica"], started["level"]) == ("started", "r1", "info")
    assert started["csn"] == 7
    assert (failed["event"], failed["replica"], failed["level"]) == ("session 0xa", "r1", "error")
    assert "ValueError: no" in failed["exception"]
    assert ended["replica"] == "r2"
    assert all("timestamp" in line for line in lines)


def test_events_are_text_for_people_if_asked() -> None:
    """The same events are written as words."""
    text = "\n".join(said("text"))
    assert all(word in text for word in ("started", "session 0xa", "ValueError: no", "replica=r1"))


def test_a_log_that_cannot_be_written_stops_nobody() -> None:
    """On a full disk lines are lost, but not the work that they describe."""
    script = textwrap.dedent(SCRIPT) + 'print("worked on")'
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, "info", "json"],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )
    assert done.stdout == "worked on\n"
