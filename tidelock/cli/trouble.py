"""Commands for a cluster in trouble: `why-blocked`, `resolve-lost`, `skip-record`, `rebuild-zookeeper`."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from tidelock.cli import output
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.wire.rows import Fields

#: States of a member for which the others keep nothing.
_LEFT_OUT: Final = frozenset({"struck", "removed"})


def add_to(group: typer.Typer) -> None:
    """Register the commands in the group `admin`."""
    group.command(name="why-blocked")(on_target(why_blocked))
    group.command(name="resolve-lost")(on_target(resolve_lost))
    for name, command in (("skip-record", skip_record), ("rebuild-zookeeper", rebuild_zookeeper)):
        group.command(
            name=name,
            add_help_option=False,  # the process explains its own options
            context_settings={
                "allow_extra_args": True,
                "ignore_unknown_options": True,
                "help_option_names": [],
            },
        )(command)


def why_blocked(
    target: ClusterOptions,
    tid: Annotated[
        str | None,
        typer.Option(help="Explain this transaction too: a commit that waits, or the holder of a lock."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain what holds back snapshot CSNs, the tail, the horizon, a commit or a lock."""
    with target.connect() as db:
        status = db.status()
        explained = db.explain(tid) if tid else None
    found = dict(reasons(status, explained))
    if as_json:
        output.print_json(found)
        return
    output.print_table(["what", "why"], [[what, why] for what, why in found.items()])


def reasons(status: Fields, explained: Fields | None = None) -> Iterator[tuple[str, str]]:
    """Yield what holds back each thing, from the status of an agent and the story of a transaction. Pure."""
    end = status["end_csn"]
    for row in status["replicas"]:
        yield f"snapshot CSN of {row['id']}", _replica(row, end)
    yield "tail", _tail(status)
    yield "horizon", _horizon(status)
    if explained is not None:
        yield f"transaction {explained['tid']}", _transaction(explained, status)
        yield f"locks of {explained['tid']}", _locks(explained, status)
    for lost in status["lost"]:
        of = lost.get("table", "all tables of its transaction")
        what = f"{lost.get('rows', 0)} rows of {of}, CSN {lost['csn']}, tid {lost['tid']}"
        yield f"part {lost['part']}", f"declared lost by {lost['by']}: {lost['why']}; {what}"
    for word in status.get("skipped", []):
        held = f"; it held {', '.join(word['tids'])}" if word["tids"] else ""
        yield f"record of CSN {word['csn']}", f"skipped by {word['by']}: {word['why']}{held}"


def _counted(status: Fields) -> list[Fields]:
    """Return the replicas for which the others keep something."""
    return [row for row in status["replicas"] if row["member"] not in _LEFT_OUT]


def _replica(row: Fields, end: int) -> str:
    at = row["snapshot_csn"]
    where = f"at CSN {at} of {end}"
    match row["member"]:
        case "removed":
            return "it was removed from the cluster; it holds nothing back"
        case "struck":
            return f"{where}: it was struck and holds nothing back; start its agent, and it clones"
    if not row["alive"]:
        return f"{where}: it gives no sign of life; start its agent"
    blocked = row.get("blocked_by")
    lacks = f"CSN {blocked['csn']} lacks part {blocked['part']} of {blocked['tid']}" if blocked else ""
    match row.get("phase"):
        case "blocked":
            step = f"; `tidelock admin resolve-lost {blocked['part']}` says who holds it" if blocked else ""
            return f"{where}: blocked, {lacks or 'its catalog takes no records: see its log'}{step}"
        case "full":
            more = f", {lacks}" if lacks else ""
            return f"{where}: its disk is full{more}; free space on it"
        case "starting":
            return f"{where}: starting, it applies what it has missed"
    if at is not None and at < end:
        return f"{where}: it follows"
    return f"{where}: nothing holds it back"


def _tail(status: Fields) -> str:
    behind = min(_counted(status), key=lambda row: row["snapshot_csn"] or 0)
    return (
        f"at CSN {status['tail']}; records stay until all members have applied them: {behind['id']} is at "
        f"CSN {behind['snapshot_csn']} of {status['end_csn']} (and log_keep_records more stay for people)"
    )


def _horizon(status: Fields) -> str:
    held = status.get("holding_back")
    where = f"at CSN {status['horizon']}"
    if held is None:
        return where
    match held["kind"]:
        case "pin":
            ends = "`tidelock admin horizon --drop-pins` ends it"
            return f"{where}, held at CSN {held['csn']} by pin {held['name']}; {ends}"
        case "oldest":
            return f"{where}, held at CSN {held['csn']} by what {held['name']} has in use or has not applied"
        case "retention":
            return f"{where}, held at CSN {held['csn']} by the retention of history"
    return where


def _transaction(explained: Fields, status: Fields) -> str:
    home = explained["home"]
    match explained["outcome"]:
        case "committed":
            csn = explained["csn"]
            members = {row["id"] for row in _counted(status)}
            late = [
                replica
                for replica, at in explained["replicas"].items()
                if replica in members and (at or 0) < csn
            ]
            waits = f"; not applied by {', '.join(late)}" if late else "; applied everywhere"
            return f"committed at CSN {csn}{waits}"
        case "running":
            here = explained["here"]
            if here is not None and here["state"] == "sealed":
                return f"its commit waits at {home} for copies on {status['copies']} replicas, or for the log"
            return f"open at {home}: its client has not asked for a commit"
    return f"{explained['outcome']}; nothing waits for it"


def _locks(explained: Fields, status: Fields) -> str:
    if explained["outcome"] == "committed":
        slowest = min(row["snapshot_csn"] or 0 for row in _counted(status))
        if slowest >= explained["csn"]:
            return "all replicas know of its removals: its locks go with the next sweep"
        return (
            f"they stay until all replicas have applied CSN {explained['csn']}; the slowest is at {slowest}"
        )
    if explained["outcome"] == "running":
        return "they stay until it ends: wait, or `tidelock kill` it"
    return "they go with the next sweep of its home"


def resolve_lost(
    target: ClusterOptions,
    part: Annotated[str, typer.Argument(help="Part id, as why-blocked shows it.", show_default=False)],
    confirm: Annotated[bool, typer.Option("--confirm", help="Declare it lost.")] = False,
    confirm_without: Annotated[
        list[str] | None,
        typer.Option(metavar="REPLICA", help="A silent replica that may hold it and is left out."),
    ] = None,
    why: Annotated[str, typer.Option(help="The reason, for the audit trail.")] = "",
    by: Annotated[str, typer.Option(help="The operator; default: the user of this shell.")] = "",
    as_json: Json = False,
) -> None:
    """Say what is lost with a part that no replica holds; with --confirm, declare it lost."""
    with target.connect() as db:
        found = db.resolve_lost(
            part,
            confirm=confirm,
            without=confirm_without or [],
            by=by or (_user() if confirm else ""),
            why=why,
        )
    if as_json:
        output.print_json(found)
        return
    what = (
        f"{found.get('rows', 0):,} rows of table {found['table']}"
        if found["kind"] == "part"
        else "all changes of its transaction, in all tables"
    )
    output.say(f"{part}: {what}; CSN {found['csn']}, transaction {found['tid']}")
    for word in found["replicas"]:
        output.say(f"  {word['replica']} {word['word']} (at CSN {word.get('snapshot_csn')})")
    if found.get("declared"):
        output.say(f"declared lost by {found['by']}: {found['why']}")
    elif why_not := found.get("why_not"):
        output.hint(f"it cannot be declared lost: {why_not}")
    else:
        output.hint("no replica holds it: run again with --confirm and --why to go on without it")


def _user() -> str:
    """Return the user of this shell; an error of usage where it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError) as error:
        raise typer.BadParameter(
            f"expected the name of the operator, found none for uid {os.getuid()}: give --by NAME"
        ) from error


def rebuild_zookeeper(context: typer.Context) -> None:
    """Make the tree in ZooKeeper again out of the data directories of stopped replicas."""
    _become("rebuilding", context.args)


def skip_record(context: typer.Context) -> None:
    """Show a record of the log that stops all replicas; with --confirm, let them pass over it."""
    _become("skipping", context.args)


def _become(room: str, arguments: list[str]) -> None:
    command = [sys.executable, "-m", f"tidelock.replica_agent.{room}.main", *arguments]
    os.execv(sys.executable, command)  # noqa: S606 - the process of the agent's code replaces this one
