"""The audit of a cluster: every replica audits itself, then all are compared at one CSN.

All replicas have applied that CSN, and it is pinned meanwhile. Each replica reports a digest of every table's
parts and a digest of the outcomes that all still keep. Equal CSN, equal digests (I8, I10). If the digests of
parts differ, the parts of the table are listed. If those of outcomes differ, the range of CSNs is halved
until one commit is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tidelock.client.agents.connection import Connection
from tidelock.client.agents.members import KnownMember
from tidelock.client.reads.snapshot import Snapshot
from tidelock.errors import SnapshotTooOldError, StandbyError, UnavailableError
from tidelock.wire.audit import AuditAnswer, AuditFinding, Digests
from tidelock.wire.cluster import StatusAnswer
from tidelock.wire.tables import PartInfo

T = TypeVar("T")

#: Name of the check that compares replicas.
REPLICAS: Final = "replicas"
#: How long a client waits for an audit by default, in seconds; agents end theirs by `audit_timeout_s`.
TIMEOUT_S: Final = 3700.0
#: Number of differing parts that are named, for each table.
_PARTS_NAMED: Final = 100
#: Number of commits with differing outcomes that are named.
_OUTCOMES_NAMED: Final = 10
#: The things that a finding may name.
_NAMED: Final = ("table", "part", "file", "znode", "tid", "csn")
_REPORT: Final = "keep the agents' logs and data directories, and report it; do not restart the replica"


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction or leftover that an audit has found (docs/operations.md, "Audit").

    Attributes:
        check: The check that has found it.
        fault: The kind of difference.
        severity: "error": two things contradict each other; "warning": something is left over.
        expected: The state that should exist.
        found: The state that exists.
        next_step: What an operator should do about it.
        replicas: The replicas that it concerns, or that have found it.
        about: The names among `table`, `part`, `file`, `znode`, `tid`, `csn` that it concerns.
    """

    check: str
    fault: str
    severity: str
    expected: str
    found: str
    next_step: str
    replicas: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplicaAudit:
    """The extent of the audit of one replica.

    Attributes:
        csn: Last CSN at which catalog and log were compared.
        log_from: First CSN at which they were compared.
        seconds: Duration of the audit.
        checks: Number of things that each check has examined.
        left_out: Number of findings that are counted, but not reported.
    """

    csn: int
    log_from: int
    seconds: float
    checks: Mapping[str, int]
    left_out: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of a cluster.

    Attributes:
        csn: The CSN at which replicas were compared; None if fewer than two could be.
        deep: Whether all bytes were read.
        replicas: The audit of each replica that answered.
        silent: Replicas that did not answer, with the reason. Nothing is known of them.
        not_compared: Why replicas could not be compared; None if they were, or if only one exists.
        findings: All findings, errors first.
    """

    csn: int | None
    deep: bool
    replicas: Mapping[str, ReplicaAudit]
    silent: Mapping[str, str]
    not_compared: str | None
    findings: Sequence[Finding]

    @property
    def clean(self) -> bool:
        """Whether every replica was audited, and nothing was found."""
        return not (self.findings or self.silent or self.not_compared)


def audit(
    connection: Connection, pin: Callable[[int], Snapshot], *, deep: bool, timeout_s: float
) -> AuditReport:
    """Audit all replicas that the client may use; `pin` opens a snapshot.

    Raises:
        UnavailableError: No replica answers.
    """
    members = connection.members.in_order()
    silent: dict[str, str] = {}
    answers: dict[str, AuditAnswer] = {}
    call = connection.transport.call

    def ask(member: KnownMember) -> AuditAnswer:
        query = {"deep": int(deep)}
        return call(member.api, "GET", "/audit", answer=AuditAnswer, query=query, timeout_s=timeout_s)

    for member, answer in zip(members, _of_all(ask, members), strict=True):
        if isinstance(answer, UnavailableError):
            connection.members.note(member, answer)
            silent[member.id] = answer.message
        else:
            answers[member.id] = answer
    if not answers:
        raise UnavailableError(f"no replica could be audited ({'; '.join(silent.values())})")
    findings = [_finding(row, name) for name, answer in answers.items() for row in answer.findings]
    answered = [member for member in members if member.id in answers]
    csn = not_compared = None
    if len(answered) > 1:
        try:
            csn, differences = _compare(connection, pin, answered)
            findings += differences
        except UnavailableError as error:
            not_compared = error.message
    return AuditReport(
        csn=csn,
        deep=deep,
        replicas={name: _replica_audit(answer) for name, answer in sorted(answers.items())},
        silent=silent,
        not_compared=not_compared,
        findings=_merged(findings),
    )


def _of_all(ask: Callable[[KnownMember], T], members: Sequence[KnownMember]) -> list[T | UnavailableError]:
    """Send a request to all replicas at the same time."""

    def one(member: KnownMember) -> T | UnavailableError:
        try:
            return ask(member)
        except UnavailableError as error:
            return error

    with ThreadPoolExecutor(max(1, len(members))) as threads:
        return list(threads.map(one, members))


def _replica_audit(answer: AuditAnswer) -> ReplicaAudit:
    checks = {row.check: row.looked_at for row in answer.checks}
    return ReplicaAudit(answer.csn, answer.log_from, answer.seconds, checks, answer.left_out)


def _finding(row: AuditFinding, replica: str) -> Finding:
    named = {name: getattr(row, name) for name in _NAMED}
    return Finding(
        check=row.check,
        fault=row.fault,
        severity=row.severity.value,
        expected=row.expected,
        found=row.found,
        next_step=row.next_step,
        replicas=(replica,),
        about={name: value for name, value in named.items() if value is not None},
    )


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Merge equal findings of several replicas, e.g. those about ZooKeeper, into one; errors first."""
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for one in findings:
        key = (one.check, one.fault, one.expected, one.found, *sorted(one.about.items()))
        alike.setdefault(key, []).append(one)
    merged = [
        Finding(
            one.check, one.fault, one.severity, one.expected, one.found, one.next_step,
            tuple(sorted({replica for same in group for replica in same.replicas})), one.about,
        )
        for group in alike.values()
        for one in group[:1]
    ]  # fmt: skip
    return sorted(merged, key=lambda one: (one.severity != "error", one.check, one.fault, one.replicas))


# --------------------------------------------------------------------------------------------------- replicas


def _compare(
    connection: Connection, pin: Callable[[int], Snapshot], members: Sequence[KnownMember]
) -> tuple[int, list[Finding]]:
    """Compare replicas at the largest CSN that all have applied; return that CSN with the differences."""

    def applied(member: KnownMember) -> int:
        return connection.small("GET", "/status", answer=StatusAnswer)(member).snapshot_csn

    csn = min(_each(applied, members))
    try:
        snapshot = pin(csn)
    except SnapshotTooOldError as error:  # a replica is behind the horizon of the others
        raise StandbyError(
            f"a replica is at CSN {csn}, which is below the horizon ({error.message})"
        ) from error
    with snapshot:
        comparison = _Comparison(connection, members, csn)
        return csn, [*comparison.tables(), *comparison.outcomes()]


def _each(ask: Callable[[KnownMember], T], members: Sequence[KnownMember]) -> list[T]:
    answers: list[T] = []
    for answer in _of_all(ask, members):
        if isinstance(answer, UnavailableError):
            raise answer
        answers.append(answer)
    return answers


class _Comparison:
    """The comparison of replicas at one CSN."""

    def __init__(self, connection: Connection, members: Sequence[KnownMember], csn: int) -> None:
        self._connection, self._members, self._csn = connection, members, csn
        self._digests = self._ask("/audit/digests", Digests, csn=csn)
        self._floor = max(answer.outcome_floor for answer in self._digests.values())

    def _ask(self, path: str, answer: type[T], **query: Any) -> dict[str, T]:
        """Send a request to all replicas; return the answers by replica id."""

        def ask(member: KnownMember) -> T:
            transport = self._connection.transport
            timeout_s = transport.timeouts.query_s
            return transport.call(member.api, "GET", path, answer=answer, query=query, timeout_s=timeout_s)

        return {
            member.id: answer for member, answer in zip(self._members, _each(ask, self._members), strict=True)
        }

    def tables(self) -> list[Finding]:
        """Compare the parts of all tables."""
        names = sorted({name for answer in self._digests.values() for name in answer.tables})
        findings: list[Finding] = []
        for name in names:
            digests = [answer.tables.get(name) for answer in self._digests.values()]
            if any(one != digests[0] for one in digests):
                findings += self._parts(name)
        return findings

    def _parts(self, table: str) -> list[Finding]:
        """Return findings for the parts that not all replicas show alike."""
        shown = {
            replica: {row.part: (row.path, row.rows, row.length, row.checksum) for row in rows}
            for replica, rows in self._ask("/parts", list[PartInfo], csn=self._csn, table=table).items()
        }
        differing = [
            part
            for part in sorted({part for parts in shown.values() for part in parts})
            if len({parts.get(part) for parts in shown.values()}) > 1
        ]
        findings = [
            self._difference(
                "parts_differ",
                {name: parts.get(part) for name, parts in shown.items()},
                table=table,
                part=part,
            )
            for part in differing[:_PARTS_NAMED]
        ]
        # The parts are equal, the digests differ in what lists do not show, e.g. the tid that made a part.
        return findings or [self._difference("parts_differ", self._digests_of(table), table=table)]

    def _digests_of(self, table: str) -> dict[str, Any]:
        digests = {name: answer.tables.get(table) for name, answer in self._digests.items()}
        return {name: digest and digest.digest for name, digest in digests.items()}

    def outcomes(self) -> list[Finding]:
        """Compare the outcomes that all replicas keep."""
        findings: list[Finding] = []
        ranges: list[tuple[int, int]] = [(self._floor, self._csn)]
        while ranges and len(findings) < _OUTCOMES_NAMED:
            above, to = ranges.pop()
            digests = self._outcomes(above, to)
            if len(set(digests.values())) <= 1:
                continue
            if to - above == 1:
                findings.append(self._difference("outcomes_differ", digests, csn=to))
            else:
                middle = (above + to) // 2
                ranges += [(middle, to), (above, middle)]
        return findings

    def _outcomes(self, above: int, to: int) -> dict[str, str]:
        """Request digests of a range of outcomes; of less, or nothing, if a replica drops some meanwhile."""
        answers: dict[str, Digests] = {}
        while above < to:
            answers = self._ask("/audit/digests", Digests, csn=to, above=above, tables=0)
            floor = max(answer.outcome_floor for answer in answers.values())
            if floor <= above:
                break
            above, answers = floor, {}
        return {
            name: f"{answer.outcomes.count} outcomes, {answer.outcomes.digest}"
            for name, answer in answers.items()
        }

    def _difference(self, fault: str, shown: Mapping[str, Any], **about: Any) -> Finding:
        """Return a finding that states what most replicas show, and which replicas differ."""
        (most, _), *_ = Counter(shown.values()).most_common(1)
        others = {name: value for name, value in shown.items() if value != most}
        return Finding(
            check=REPLICAS,
            fault=fault,
            severity="error",
            expected=f"as on {', '.join(name for name in shown if name not in others)}: {_text(most)}",
            found="; ".join(f"{name}: {_text(value)}" for name, value in others.items()),
            next_step=_REPORT,
            replicas=tuple(sorted(others)),
            about={"csn": self._csn, **about},
        )


def _text(value: object) -> str:
    match value:
        case None:
            return "none"
        case tuple():
            path, rows, length, checksum = value
            return f"{path or '(no partition)'}, {rows} rows, {length} bytes, {checksum}"
    return str(value)
