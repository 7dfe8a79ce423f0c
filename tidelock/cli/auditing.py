"""The command that audits a cluster."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from tidelock.cli import output
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client.reads.audit import AuditReport, Finding
from tidelock.exits import Exit


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Operating")(on_target(audit))


def audit(
    target: ClusterOptions,
    deep: Annotated[bool, typer.Option("--deep", help="Read the bytes of all parts too.")] = False,
    as_json: Json = False,
) -> None:
    """Check that files, catalog, log and locks of every replica agree, and report each difference."""
    with target.connect() as db, output.err().status("auditing; each replica logs its progress"):
        report = db.audit(deep=deep)
    if as_json:
        output.print_json({**dataclasses.asdict(report), "clean": report.clean})
    else:
        _print(report)
    if report.findings:
        raise typer.Exit(Exit.FOUND)
    if not report.clean:
        raise typer.Exit(Exit.UNAVAILABLE)


def _print(report: AuditReport) -> None:
    checks = list(dict.fromkeys(check for one in report.replicas.values() for check in one.checks))
    output.print_table(
        ["examined", *report.replicas],
        [[check, *(one.checks.get(check) for one in report.replicas.values())] for check in checks],
    )
    if report.csn is not None:
        output.say(f"compared with each other at CSN {report.csn}")
    if report.findings:
        output.print_table(
            ["", "replicas", "what", "about", "expected", "found", "next step"],
            [
                [
                    one.severity, ", ".join(one.replicas), f"{one.check}: {one.fault}", _about(one),
                    one.expected, one.found, one.next_step,
                ]
                for one in report.findings
            ],
            title="findings",
        )  # fmt: skip
    left_out = sum(one.left_out for one in report.replicas.values())
    if left_out:
        output.say(f"at least {left_out} more findings are not shown")
    for replica, reason in report.silent.items():
        output.complain(f"replica {replica} was not audited: {reason}")
    if report.not_compared is not None:
        output.complain(f"the replicas were not compared with each other: {report.not_compared}")
    if report.clean:
        output.say(f"nothing found on {', '.join(report.replicas)}")


def _about(finding: Finding) -> str:
    return "\n".join(f"{name} {value}" for name, value in finding.about.items())
