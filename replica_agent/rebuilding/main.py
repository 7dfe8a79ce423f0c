"""The command that makes the tree in ZooKeeper again: `tidelock admin rebuild-zookeeper`.

Without ``--confirm`` it changes nothing: it says what the catalogs hold, what they cannot prove, and which
command carries it out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tidelock.csnlog.tree_maker import make_again, require_idle
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import ConfigError, TidelockError
from tidelock.exits import Exit, exit_of
from tidelock.replica_agent.rebuilding import plan as planning
from tidelock.replica_agent.rebuilding.facts import CatalogFacts, decided, read_facts
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.partfs import PartFs

#: ZooKeeper sessions of agents that were killed end within this time, in seconds.
_SILENCE_S: Final = 60.0
#: A request is repeated for so long while ZooKeeper does not answer, in seconds.
_PATIENCE_S: Final = 30.0
_SESSION_S: Final = 10.0
_REQUEST_S: Final = 10.0
_MULTI_BYTES: Final = 512 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = _parser().parse_args(arguments)
    try:
        with ExitStack() as stack:
            catalogs = _read(given.source, stack)
            return asyncio.run(_rebuild(given, catalogs))
    except TidelockError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.message}\n")
        return exit_of(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidelock admin rebuild-zookeeper",
        description="Make the tree in ZooKeeper again out of the catalogs of stopped replicas.",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        action="append",
        required=True,
        metavar="FOLDER",
        help="Data directory of a replica, or a copy of its catalog.db (with catalog.db-wal); repeat it for "
        "each replica that is left.",
    )
    parser.add_argument("--zk", required=True, help="ZooKeeper connect string with the cluster's root.")
    parser.add_argument("--copies", type=int, default=2, help="Durable copies that a commit needs.")
    parser.add_argument(
        "--epoch-limit", type=int, default=1_000_000_000, help="Records of an epoch of the log."
    )
    parser.add_argument("--confirm", default="", metavar="CLUSTER_ID", help="Carry it out.")
    parser.add_argument("--json", action="store_true", help="Print the report as JSON.")
    return parser


def _read(folders: Sequence[Path], stack: ExitStack) -> list[CatalogFacts]:
    """Read the catalogs. A data directory is locked meanwhile and until the end, so that no agent runs on it.

    Raises:
        ConfigError: An agent runs there, or the folders are no catalogs of one history.
    """
    catalogs = []
    for folder in folders:
        if (folder / "parts").is_dir():
            files = PartFs(folder, DiskRoom(folder))
            files.open()
            stack.callback(files.close)
        catalogs.append(read_facts(folder))
    planning.require_one_history(catalogs)
    return catalogs


async def _rebuild(given: argparse.Namespace, catalogs: Sequence[CatalogFacts]) -> int:
    base = planning.newest(catalogs)
    tree = planning.plan(
        catalogs,
        copies=given.copies,
        epoch_limit=given.epoch_limit,
        incarnation=secrets.token_hex(16),
        time_ms=time.time_ns() // 1_000_000,
    )
    undecided = (one.tid for catalog in catalogs for one in catalog.undecided)
    unproved = planning.doubts(catalogs, decided(base.folder, undecided))
    if given.confirm and given.confirm != base.cluster_id:
        raise ConfigError(f"expected --confirm {base.cluster_id}, found --confirm {given.confirm}")
    store = ZkStore(
        given.zk,
        session_timeout_s=_SESSION_S,
        request_timeout_s=_REQUEST_S,
        multi_bytes_max=_MULTI_BYTES,
        make_root=bool(given.confirm),
    )
    report = _report(catalogs, unproved)
    if given.confirm:
        await store.open()
        try:
            await require_idle(store, base.cluster_id, silence_s=_SILENCE_S, patience_s=_PATIENCE_S)
            await make_again(store, tree, patience_s=_PATIENCE_S)
        finally:
            await store.close()
        report["incarnation"] = tree.cluster.incarnation
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _text(report, given))
    return Exit.OK


def _report(catalogs: Sequence[CatalogFacts], unproved: planning.Doubts) -> dict[str, Any]:
    base = planning.newest(catalogs)
    return {
        "cluster_id": base.cluster_id,
        "incarnation": None,
        "base": base.replica,
        "csn": base.csn,
        "time": _time(base.time_ms),
        "tables": len(base.tables),
        "parts": base.parts,
        "bytes": base.part_bytes,
        "labels": len(base.labels),
        "outcomes": base.outcomes,
        "clones": dict(sorted(planning.csns_behind(catalogs).items())),
        "removed": list(unproved.absent),
        "undecided": [
            {"tid": one.tid, "rows": one.rows, "tables": list(one.tables)} for one in unproved.undecided
        ],
    }


def _text(report: dict[str, Any], given: argparse.Namespace) -> str:
    """Return the report for people."""
    base, csn = report["base"], report["csn"]
    lines = [
        f"cluster {report['cluster_id']}: {base} has applied most, up to CSN {csn} ({report['time']})",
        f"tables: {report['tables']}, labels: {report['labels']}, outcomes: {report['outcomes']}",
        f"visible parts: {report['parts']}, bytes: {report['bytes']}",
    ]
    lines += [f"{name} has applied up to CSN {at}: it will clone" for name, at in report["clones"].items()]
    lines += [
        "Not proved:",
        f"  Commits behind CSN {csn} are lost, if there were any. Clients may have been told of them.",
    ]
    lines += [
        f"  {name} is named here and was not given. It is removed for good." for name in report["removed"]
    ]
    for one in report["undecided"]:
        of = ", ".join(one["tables"]) or "no table"
        lines.append(
            f"  {one['tid']} ({one['rows']} rows of {of}) is undecided and counts as aborted. A client may "
            "have been told that it is committed."
        )
    if report["incarnation"] is None:
        again = f"--confirm {report['cluster_id']}"
        lines.append(f"Nothing was changed. Stop all agents, then run the same command with {again}")
    else:
        lines.append(
            f"The tree is made again below {given.zk}, with incarnation {report['incarnation']}. Start the "
            "agents of these replicas."
        )
    return "\n".join(lines) + "\n"


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    sys.exit(main())
