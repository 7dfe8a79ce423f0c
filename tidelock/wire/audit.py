"""Bodies of /api/v1/audit: the findings of a replica, and the digests that compare replicas. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tidelock.wire.ids import Csn, ReplicaId


class Severity(StrEnum):
    """The severity of a finding."""

    #: Two things contradict each other: something is lost, damaged or in the way.
    ERROR = "error"
    #: Something is left over and does no harm.
    WARNING = "warning"


class AuditFinding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One difference that an audit has found.

    Attributes:
        check: The check that has found it.
        fault: The kind of difference, a name for programs (docs/operations.md, "Audit").
        severity: Its severity.
        expected: The state that should exist.
        found: The state that exists.
        next_step: What an operator does about it.
        table: Full table name, if the finding concerns a table; the next attributes likewise.
        part: Part id.
        file: Path below the data directory.
        znode: Path below the cluster's root in ZooKeeper.
        tid: Transaction.
        csn: CSN.
    """

    check: str
    fault: str
    severity: Severity
    expected: str
    found: str
    next_step: str
    table: str | None = None
    part: str | None = None
    file: str | None = None
    znode: str | None = None
    tid: str | None = None
    csn: int | None = None


class CheckReport(msgspec.Struct, frozen=True):
    """The result of a check: how many things it has examined, and how many findings are reported."""

    check: str
    looked_at: int
    findings: int


class AuditAnswer(msgspec.Struct, frozen=True):
    """The audit of one replica.

    Attributes:
        replica: Its id.
        csn: Last CSN at which catalog and log were compared.
        log_from: First CSN at which they were compared; older records are deleted.
        outcome_floor: Outcomes up to this CSN are not kept.
        deep: Whether all bytes were read.
        seconds: Duration of the audit.
        checks: The results of the checks.
        findings: The differences, the worst first; at most ``audit_findings_max``.
        left_out: Lower bound of the number of differences beyond those.
    """

    replica: ReplicaId
    csn: Csn
    log_from: Csn
    outcome_floor: Csn
    deep: bool
    seconds: float
    checks: tuple[CheckReport, ...]
    findings: tuple[AuditFinding, ...]
    left_out: int


class Digest(msgspec.Struct, frozen=True):
    """The number of things, and a digest (XXH3-128) of everything known about them."""

    count: int
    digest: str


class Digests(msgspec.Struct, frozen=True):
    """The digests of one replica at one CSN.

    Attributes:
        replica: Its id.
        csn: The CSN.
        above: Outcomes above this CSN are counted, up to ``csn``.
        outcome_floor: Outcomes up to this CSN are not kept here.
        tables: Visible parts by table, if they were asked for; tables without parts are left out.
        outcomes: The outcomes.
    """

    replica: ReplicaId
    csn: Csn
    above: Csn
    outcome_floor: Csn
    tables: dict[str, Digest]
    outcomes: Digest
