"""The command that lets all replicas pass over a record: `tidelock admin skip-record`.

It works on ZooKeeper itself, since the record may have stopped all agents. Without ``--confirm`` it changes
nothing: it shows the record, how far each replica has applied the log, and what is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import getpass
import json
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from tidelock.csnlog.core import codec
from tidelock.csnlog.core.ids import Csn
from tidelock.csnlog.core.skipped import Facts, why_not
from tidelock.csnlog.record_skipper import read, skip
from tidelock.csnlog.zookeeper.kazoo_store import ZkStore
from tidelock.errors import BadRequestError, TidelockError
from tidelock.exits import Exit, exit_of
from tidelock.replica_agent.config.command_options import add_limit, add_setting

#: Bytes of the record that are shown to people; JSON has all of them.
_SHOWN_BYTES: Final = 2000


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    found = argparse.ArgumentParser(
        prog="tidelock admin skip-record",
        description="Show a record that stops all replicas; with --confirm, let them pass over it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    found.add_argument("csn", type=int, metavar="CSN", help="CSN of the record, as the agents name it.")
    found.add_argument(
        "--zk",
        required=True,
        default=argparse.SUPPRESS,
        metavar="CONNECT",
        help="ZooKeeper connect string with the cluster's root.",
    )
    found.add_argument("--by", default="", help="The operator; default: the user of this shell.")
    found.add_argument("--why", default="", help="The reason, for the audit trail.")
    found.add_argument(
        "--decodable",
        action="store_true",
        help="Skip it although this version reads it: its commits were acknowledged, and are given up.",
    )
    found.add_argument(
        "--confirm", default="", metavar="DIGEST", help="Carry it out, for the record with this digest."
    )
    for name in ("session_timeout_s", "request_timeout_s", "connect_timeout_s", "multi_bytes_max"):
        add_setting(found, name)
    add_limit(
        found, "patience_s", 30.0, "How long requests are repeated while ZooKeeper or the agents hinder them."
    )
    found.add_argument("--json", action="store_true", help="Print the report as JSON.")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = parser().parse_args(arguments)
    try:
        report = asyncio.run(_run(given))
    except TidelockError as error:
        sys.stderr.write(f"{type(error).__name__}: {error.message}\n")
        return exit_of(error)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if given.json else _text(report))
    return Exit.OK


async def _run(given: argparse.Namespace) -> dict[str, Any]:
    if given.csn < 0:
        raise BadRequestError(f"expected a CSN, found {given.csn}: it is a number from 0 on")
    if given.confirm and not given.why:
        raise BadRequestError("expected the reason of the operator, found none: give --why")
    csn = Csn(given.csn)
    store = ZkStore(
        given.zk,
        session_timeout_s=given.session_timeout_s,
        request_timeout_s=given.request_timeout_s,
        multi_bytes_max=given.multi_bytes_max,
        connect_timeout_s=given.connect_timeout_s,
    )
    await store.open()
    try:
        facts = await read(store, csn, patience_s=given.patience_s)
        if given.confirm:
            await skip(
                store,
                csn,
                by=given.by or _user(),
                why=given.why,
                decodable=given.decodable,
                digest=given.confirm,
                time_ms=time.time_ns() // 1_000_000,
                nonce=lambda: secrets.token_hex(12),
                patience_s=given.patience_s,
            )
            facts = await read(store, csn, patience_s=given.patience_s)
    finally:
        await store.close()
    return _report(facts, decodable=given.decodable)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise BadRequestError("expected the name of the operator, found none: give --by NAME") from error


def _report(facts: Facts, *, decodable: bool) -> dict[str, Any]:
    record, word = facts.record, facts.word
    return {
        "csn": facts.csn,
        "digest": codec.digest(facts.node.data),
        "zxid": facts.node.created.zxid,
        "time_ms": facts.node.created.time_ms,
        "kind": None if record is None else record.kind.value,
        "home": None if record is None else record.home,
        "unreadable": facts.unreadable,
        "tids": list(facts.tids),
        "labels": sorted(facts.labels),
        "closes": facts.closes,
        "replicas": [
            {"id": one.replica, "state": one.state.state, "snapshot_csn": one.reached.most}
            for one in facts.members
        ],
        "bytes": base64.b64encode(facts.node.data).decode(),
        "skipped": word is not None,
        "by": None if word is None else word.by,
        "why": None if word is None else word.why,
        "why_not": why_not(facts, decodable=decodable),
    }


def _text(report: dict[str, Any]) -> str:
    """Return the report for people."""
    data = base64.b64decode(report["bytes"])
    more = f" and {len(data) - _SHOWN_BYTES} bytes more" if len(data) > _SHOWN_BYTES else ""
    lines = [
        f"record of CSN {report['csn']}, {len(data)} bytes, digest {report['digest']}",
        f"  {data[:_SHOWN_BYTES]!r}{more}",
        report["unreadable"] or f"this version reads it: kind {report['kind']}, written by {report['home']}",
        f"its transactions: {', '.join(report['tids']) or 'its bytes show none'}",
    ]
    lines += [
        f"  {one['id']} ({one['state']}) has applied the log up to CSN {one['snapshot_csn']}"
        for one in report["replicas"]
    ]
    if report["skipped"]:
        lines.append(
            f"skipped by {report['by']}: {report['why']}. Start the agents that do not run; they pass over it"
        )
    elif report["why_not"]:
        lines.append(f"it cannot be skipped: {report['why_not']}")
    else:
        lines.append(
            "Nothing was changed. Its transactions may have been acknowledged, and none of their changes "
            f"will count. Run the command with --confirm {report['digest']} and --why to go on without it"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
