"""The product's own audit finds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from chaos.checks.check import Check
from chaos.record.violation import Violation
from chaos.world import World
from tidelock.client.reads.audit import AuditReport


class Audited(Check):
    """The audit of all replicas, which reads all bytes, is clean (I4, I10, I13)."""

    name: ClassVar[str] = "audit"

    def judge(self, world: World) -> Sequence[Violation]:  # noqa: D102
        with world.cluster.connect() as db:
            return findings(db.audit(deep=True))


def findings(report: AuditReport) -> list[Violation]:
    """Return what keeps an audit from being clean. Pure."""
    told = [f"{finding}" for finding in report.findings]
    told += [f"{replica} was not audited: {why}" for replica, why in sorted(report.silent.items())]
    told += [report.not_compared] if report.not_compared else []
    return [Violation(Audited.name, "the audit is clean", text) for text in told]
