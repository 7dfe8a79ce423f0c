"""The command that audits a cluster."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tidelock.cli import output
from tidelock.cli.exits import Exit
from tidelock.cli.target import Json, Target, on_target
from tidelock.client.audit import AuditReport, Finding


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Operating")(on_target(audit))


def audit(
    target: Target,
    deep: Annotated[bool, typer.Option("--deep", help="Read the bytes of all parts too.")] = False,
    as_json: Json = False,
) -> None:
    """Prove that files, catalog, log and locks of every replica agree, or tell where they do not."""
    with target.connect() as db, output.err().status("auditing; replicas log how far they are"):
        found = db.audit(deep=deep)
    if as_json:
        output.print_json({**dataclasses.asdict(found), "clean": found.clean})
    else:
        _print(found)
    if found.findings:
        raise typer.Exit(Exit.FOUND)
    if not found.clean:
        raise typer.Exit(Exit.UNAVAILABLE)


def _print(found: AuditReport) -> None:
    checks = list(dict.fromkeys(check for told in found.replicas.values() for check in told.checks))
    output.print_table(
        ["looked at", *found.replicas],
        [[check, *(told.checks.get(check) for told in found.replicas.values())] for check in checks],
    )
    if found.csn is not None:
        output.say(f"compared with each other at CSN {found.csn}")
    if found.findings:
        output.print_table(
            ["", "replicas", "what", "about", "expected", "found", "next step"],
            [
                [
                    one.severity, ", ".join(one.replicas), f"{one.check}: {one.fault}", _about(one),
                    one.expected, one.found, one.next_step,
                ]
                for one in found.findings
            ],
            title="findings",
        )  # fmt: skip
    left_out = sum(told.left_out for told in found.replicas.values())
    if left_out:
        output.say(f"and {left_out} more findings, or more than that")
    for replica, reason in found.silent.items():
        output.complain(f"replica {replica} was not audited: {reason}")
    if found.not_compared is not None:
        output.complain(f"the replicas were not compared with each other: {found.not_compared}")
    if found.clean:
        output.say(f"nothing found on {', '.join(found.replicas)}")


def _about(finding: Finding) -> str:
    return "\n".join(f"{name} {value}" for name, value in finding.about.items())
