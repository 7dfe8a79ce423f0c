"""Commands that change the members of a cluster: `tidelock admin replica ...`, `tidelock admin copies`."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from tidelock.cli import output
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client import Database
from tidelock.errors import BadRequestError, UnavailableError
from tidelock.wire.members import MembersAnswer

Name = Annotated[str, typer.Argument(metavar="REPLICA", help="Id of the replica.", show_default=False)]
Rack = Annotated[str, typer.Option(help="Rack of the new replica; its agent's own setting replaces it.")]
#: Pause between two looks at a replica that drains.
_LOOK_S: Final = 0.5


def add_to(group: typer.Typer) -> None:
    """Register the commands below `admin`."""
    replica = typer.Typer(
        no_args_is_help=True, help="Change the members: add, remove, replace, drain, strike."
    )
    for command in (add, remove, replace, drain, strike):
        replica.command()(on_target(command))
    group.add_typer(replica, name="replica")
    group.command()(on_target(copies))


def add(target: ClusterOptions, name: Name, rack: Rack = "", as_json: Json = False) -> None:
    """Register a replica; then start its agent with this id and --join."""
    with target.connect() as db:
        _show(db.membership.add(name, rack=rack), f"{name} is registered", as_json)


def remove(target: ClusterOptions, name: Name, as_json: Json = False) -> None:
    """Take a replica out for good: its id is never used again."""
    with target.connect() as db:
        _show(db.membership.remove(name), f"{name} is removed", as_json)


def replace(
    target: ClusterOptions,
    old: Annotated[str, typer.Argument(help="Id of the replica that leaves.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Id of the new one, never used before.", show_default=False)],
    rack: Rack = "",
    as_json: Json = False,
) -> None:
    """Take a replica out for good and register another one, in one step."""
    with target.connect() as db:
        done = db.membership.replace(old, new, rack=rack)
        _show(done, f"{old} is removed, {new} is registered", as_json)


def drain(
    target: ClusterOptions,
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Let it begin transactions again.")] = False,
    limit_s: Annotated[
        float, typer.Option("--limit", help="Seconds to wait until it can be stopped.", min=0)
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Have a replica begin no transactions; return when it can be stopped without a loss."""
    if not undo and target.replica not in {None, name}:
        raise BadRequestError(
            f"drain waits for what {name} itself says, and --replica {target.replica} allows no other one to "
            f"be asked: leave it out, or give --replica {name}"
        )
    with target.connect() as db:
        done = db.membership.drain(name, undo=undo)
        if not undo:
            try:
                _await_drained(db, name, limit_s, racks=done.racks)
            except UnavailableError as error:
                error.add_note(f"{name} goes on draining: run the command again, or with --undo")
                raise
    _show(done, f"{name} serves again" if undo else f"{name} is drained: it can be stopped", as_json)


def strike(target: ClusterOptions, name: Name, as_json: Json = False) -> None:
    """Have a replica hold nothing back; it clones before it serves again."""
    with target.connect() as db:
        _show(db.membership.strike(name), f"{name} is struck", as_json)


def copies(
    target: ClusterOptions,
    number: Annotated[int, typer.Argument(help="Durable copies that a commit needs.", min=1)],
    racks: Annotated[
        bool | None, typer.Option("--racks/--no-racks", help="Copies of one rack count as one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set how many durable copies a commit needs."""
    with target.connect() as db:
        done = db.membership.set_copies(number, racks=racks)
        _show(done, f"a commit needs {number} {'copy' if number == 1 else 'copies'}", as_json)


def _await_drained(db: Database, replica: str, limit_s: float, *, racks: bool) -> None:
    """Wait until a replica has nothing open, and ``copies`` others have all that it has.

    With ``racks`` the others of one rack count as one. A look that fails is repeated: a replica may start
    again, or be suspended, while it drains.

    Raises:
        UnavailableError: It is not drained within ``limit_s``, or does not answer then.
    """
    until = time.monotonic() + limit_s
    landed: set[str] | None = None
    while True:
        try:
            shown = db.membership.status_of(replica)
        except UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOOK_S)
            continue
        whole = {
            ("rack", row.rack) if racks and row.rack else ("replica", row.id)
            for row in shown.replicas
            if row.id != replica and row.member == "serving" and row.alive and not row.draining
            if (row.snapshot_csn or 0) >= shown.snapshot_csn
        }
        behind = shown.copies - len(whole)
        if shown.state == "draining":
            # From here on its copies do not count, so nobody relies on what lands later.
            landed = {*shown.landed} if landed is None else landed.intersection(shown.landed)
            if not (shown.open_transactions or landed) and behind <= 0:
                return
        if time.monotonic() > until:
            raise UnavailableError(
                f"expected {replica} to be drained within {limit_s:g} s, found it {shown.state} with "
                f"{shown.open_transactions} open transactions, {len(landed or ())} landings that are not "
                f"committed, and {max(behind, 0)} {'racks' if racks else 'replicas'} too few with all that "
                "it has",
                replica=replica,
            )
        time.sleep(_LOOK_S)


def _show(done: MembersAnswer, what: str, as_json: bool) -> None:
    if as_json:
        output.print_json(done)
        return
    output.say(what if done.changed else f"{what} (it was so before)")
    states = ", ".join(f"{replica} {state}" for replica, state in done.states.items())
    draining = f"; draining: {', '.join(done.draining)}" if done.draining else ""
    racks = ", one per rack" if done.racks else ""
    output.hint(f"members: {states}; copies: {done.copies}{racks}{draining}")
