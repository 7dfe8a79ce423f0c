"""Bodies of /api/v1/audit: what an audit of a replica has found, and what replicas are compared by. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tidelock.wire.ids import Csn, ReplicaId


class Severity(StrEnum):
    """How bad it is."""

    #: Two things contradict each other: something is lost, damaged or in the way.
    ERROR = "error"
    #: Something is left over; nothing is wrong by it.
    WARNING = "warning"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One difference.

    Attributes:
        check: The check that has found it.
        fault: What kind of difference it is, a name for programs (docs/operations.md, "Audit").
        severity: How bad it is.
        expected: What should be.
        found: What is.
        next_step: What an operator does about it.
        table: Full table name, where one is concerned; likewise the others.
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
    """How a check ended: how many things it has looked at, and how many findings are reported."""

    check: str
    looked_at: int
    findings: int


class Report(msgspec.Struct, frozen=True):
    """The audit of one replica.

    Attributes:
        replica: Its id.
        csn: Up to this CSN catalog and log were compared.
        log_from: From this CSN on; older records are deleted.
        outcome_floor: Outcomes up to this CSN are not kept.
        deep: Whether all bytes were read.
        seconds: How long it took.
        checks: What was looked at.
        findings: The differences, the worst first; at most ``audit_findings_max``.
        left_out: How many there are beyond that, at least.
    """

    replica: ReplicaId
    csn: Csn
    log_from: Csn
    outcome_floor: Csn
    deep: bool
    seconds: float
    checks: tuple[CheckReport, ...]
    findings: tuple[Finding, ...]
    left_out: int


class Digest(msgspec.Struct, frozen=True):
    """How many things there are, and a digest (XXH3-128) of all that is known of them."""

    count: int
    digest: str


class Digests(msgspec.Struct, frozen=True):
    """One replica at one CSN.

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
