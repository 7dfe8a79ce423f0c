"""The options of the command that makes the tree in ZooKeeper again.

Where an agent has a setting of the same name, its default and its bounds are those of the setting.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from tidelock.replica_agent.config.command_options import add_limit, add_setting

#: The options that are settings of agents, and what they mean here where the setting says it otherwise.
_SETTINGS: Final = {
    "copies": "Durable copies that a commit needs.",
    "epoch_limit": "Records of an epoch of the log.",
    "session_timeout_s": "",
    "request_timeout_s": "",
    "connect_timeout_s": "How long the command waits for its ZooKeeper session.",
    "multi_bytes_max": "",
}
#: Default and meaning of the other limits.
_LIMITS: Final = {
    "silence_s": (60.0, "How long to wait for the end of the sign of life of agents that were killed."),
    "patience_s": (30.0, "How long a request is repeated while ZooKeeper does not answer."),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    found = argparse.ArgumentParser(
        prog="tidelock admin rebuild-zookeeper",
        description="Make the tree in ZooKeeper again out of the catalogs of stopped replicas.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    found.add_argument(
        "--from",
        dest="source",
        type=Path,
        action="append",
        required=True,
        default=argparse.SUPPRESS,
        metavar="FOLDER",
        help="Data directory of a replica, or a copy of its catalog.db (with catalog.db-wal); repeat it for "
        "each replica that is left.",
    )
    found.add_argument(
        "--zk",
        required=True,
        default=argparse.SUPPRESS,
        metavar="CONNECT",
        help="ZooKeeper connect string with the cluster's root.",
    )
    for name, meaning in _SETTINGS.items():
        add_setting(found, name, meaning)
    for name, (default, meaning) in _LIMITS.items():
        add_limit(found, name, default, meaning)
    found.add_argument("--confirm", default="", metavar="CLUSTER_ID", help="Carry it out.")
    found.add_argument("--json", action="store_true", help="Print the report as JSON.")
    return found
