"""The master of a Spark cluster tells on its page what it knows."""

from __future__ import annotations

from typing import Final

import urllib3

#: The name of the master among the nodes; workers are "w1", "w2", ...
MASTER: Final = "master"
#: How long the master may take to answer, in seconds.
_TIMEOUT_S: Final = 2.0


def knows(page: str, name: str, address: str) -> bool:
    """Return whether the master answers, and, if the node is a worker, has it among those that are alive.

    Args:
        page: Address of the master's page, `http://host:port`.
        name: The node.
        address: Its address, which no other worker has.
    """
    try:
        answer = urllib3.request("GET", f"{page}/json/", retries=False, timeout=_TIMEOUT_S)
    except urllib3.exceptions.HTTPError:
        return False
    # A master that is starting answers with a page for people.
    if not answer.headers.get("Content-Type", "").startswith("text/json"):
        return False
    alive = {worker["host"] for worker in answer.json()["workers"] if worker["state"] == "ALIVE"}
    return name == MASTER or address in alive
