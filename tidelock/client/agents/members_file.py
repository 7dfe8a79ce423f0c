"""The members' file: the addresses of a cluster's agents, kept by a client for its next start.

A program that knows one address cannot start while that agent is down. With such a file it tries the
addresses that it has learnt before. The file is a hint: it is replaced whenever other addresses are learnt.
A file that cannot be read or written is logged and does no harm.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

#: Programs configure it by this name, wherever the module lies.
_log = logging.getLogger("tidelock.client.members_file")


class StoredMembers(msgspec.Struct, frozen=True):
    """The content of the file.

    Attributes:
        cluster_id: The cluster.
        api: The API addresses of its agents, `host:port`.
    """

    cluster_id: str
    api: list[str]


def load(path: Path | None) -> StoredMembers | None:
    """Return what the file holds, or None."""
    if path is None:
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredMembers)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("the members' file %s cannot be read (%s); it is written again", path, error)
        return None


def store(path: Path | None, members: StoredMembers) -> None:
    """Replace the file, unless it holds that already."""
    if path is None:
        return
    data = msgspec.json.encode(members)
    try:
        with contextlib.suppress(FileNotFoundError):
            if path.read_bytes() == data:
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)  # one that is cut short by a crash is read as damaged
    except OSError as error:
        _log.warning("the members' file %s cannot be written (%s)", path, error)
