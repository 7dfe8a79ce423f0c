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
from typing import Any

from tidelock.csnlog.tree_maker import make_again, require_idle
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import ConfigError, TidelockError
from tidelock.exits import Exit, exit_of
from tidelock.replica_agent.rebuilding import plan as planning
from tidelock.replica_agent.rebuilding.facts import (
    CatalogFacts,
    decided,
    held,
    is_data_directory,
    read_facts,
)
from tidelock.replica_agent.rebuilding.options import parser
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.partfs import PartFs


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = parser().parse_args(arguments)
    try:
        with ExitStack() as stack:
            catalogs = _read(given.source, stack)
            return asyncio.run(_rebuild(given, catalogs))
    except TidelockError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.message}\n")
        return exit_of(error)


def _read(folders: Sequence[Path], stack: ExitStack) -> list[CatalogFacts]:
    """Read the catalogs. A data directory is locked meanwhile and until the end, so that no agent runs on it.

    Raises:
        ConfigError: An agent runs there, or the folders are no catalogs of one history.
    """
    catalogs = []
    for folder in folders:
        if is_data_directory(folder):
            files = PartFs(folder, DiskRoom(folder))
            files.open()
            stack.callback(files.close)
        catalogs.append(read_facts(folder))
    planning.require_one_history(catalogs)
    return catalogs


def not_proved(catalogs: Sequence[CatalogFacts]) -> planning.Doubts:
    """Return the limits of what the catalogs prove; the folders are asked for what one of them leaves open.

    Raises:
        ConfigError, CorruptError: As :func:`read_facts`.
    """
    base = planning.newest(catalogs)
    undecided = (one.tid for catalog in catalogs for one in catalog.undecided)
    holding = (held(one.folder, base.lacking) for one in catalogs)
    return planning.doubts(
        catalogs, decided=decided(base.folder, undecided), held=frozenset().union(*holding)
    )


async def _rebuild(given: argparse.Namespace, catalogs: Sequence[CatalogFacts]) -> int:
    base = planning.newest(catalogs)
    tree = planning.plan(
        catalogs,
        copies=given.copies,
        epoch_limit=given.epoch_limit,
        incarnation=secrets.token_hex(16),
        time_ms=time.time_ns() // 1_000_000,
    )
    unproved = not_proved(catalogs)
    if given.confirm and given.confirm != base.cluster_id:
        raise ConfigError(f"expected --confirm {base.cluster_id}, found --confirm {given.confirm}")
    store = ZkStore(
        given.zk,
        session_timeout_s=given.session_timeout_s,
        request_timeout_s=given.request_timeout_s,
        multi_bytes_max=given.multi_bytes_max,
        connect_timeout_s=given.connect_timeout_s,
        make_root=bool(given.confirm),
    )
    report = _report(catalogs, unproved)
    if given.confirm:
        await store.open()
        try:
            await require_idle(store, base.cluster_id, silence_s=given.silence_s, patience_s=given.patience_s)
            await make_again(store, tree, patience_s=given.patience_s, multi_bytes_max=given.multi_bytes_max)
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
        "suspect": dict(unproved.suspect),
        "lost": list(unproved.lost),
        "undecided": [
            {"tid": one.tid, "rows": one.rows, "tables": list(one.tables), "landed": one.landed}
            for one in unproved.undecided
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
    lines += [
        f"  {name} was about to replace its catalog by a clone ({why}). Leave it out if another replica has "
        "applied as much."
        for name, why in report["suspect"].items()
    ]
    if lost := report["lost"]:
        lines.append(
            f"  {len(lost)} visible part(s) lie in none of these directories; the first is {lost[0]}. Give "
            "that of a replica that has them, too. Reads of them fail, and clones do not serve without them."
        )
    for one in report["undecided"]:
        of = ", ".join(one["tables"]) or "no table"
        told = (
            "Its rows have landed: a replica that holds them brings them."
            if one["landed"]
            else "A client may have been told that it is committed."
        )
        which = f"{one['tid']} ({one['rows']} rows of {of})"
        lines.append(f"  {which} is undecided and counts as aborted. {told}")
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
