"""The audit of one replica: all checks, repeated until their findings have lasted."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import Csn, PartId
from tidelock.csnlog.log import CsnLog
from tidelock.errors import CorruptError, UnavailableError
from tidelock.replica_agent.audit import rules
from tidelock.replica_agent.audit.checks import (
    AuditCheck,
    AuditedAgent,
    CatalogCheck,
    LabelCheck,
    LockCheck,
    PinCheck,
    ProgressCheck,
    StructureCheck,
    TableCheck,
    TagCheck,
    UndecidedCheck,
)
from tidelock.replica_agent.audit.deep import DeepCheck
from tidelock.replica_agent.audit.judgements import CheckResult
from tidelock.replica_agent.audit.records import LogFacts
from tidelock.replica_agent.audit.scratch import AuditDatabase
from tidelock.replica_agent.audit.znodes import Znodes
from tidelock.replica_agent.config.metrics import Metrics
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replication.partfs import PartFs
from tidelock.wire.audit import AuditAnswer, AuditFinding, CheckReport, Severity

_log = structlog.get_logger("audit")

#: The first pause between two runs; each further pause is twice as long, up to the last one.
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
#: Findings of checks that show damaged bytes: the agent hears of the part, and fetches it again.
_DAMAGE: Final = frozenset({"missing_file", "file_size"})


class Auditor:
    """Audits, one audit at a time.

    Args:
        settings: The limits of an audit.
        files: The part files.
        log: The CSN log.
        cluster: The agent's services for checks.
        metrics: The counters of findings.
        damaged: Called with each part whose bytes are wrong or missing, and with the finding; it has the part
            checked, and fetched again.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        files: PartFs,
        log: CsnLog,
        cluster: AuditedAgent,
        metrics: Metrics,
        damaged: Callable[[PartId, str], None],
    ) -> None:
        self._settings, self._files, self._csn_log, self._cluster = settings, files, log, cluster
        self._metrics, self._damaged = metrics, damaged
        self._running = False
        self._number = itertools.count(1)

    async def run(self, *, deep: bool, abandoned: Callable[[], bool]) -> AuditAnswer:
        """Audit this replica.

        Args:
            deep: Whether to read all bytes too.
            abandoned: Returns whether the client has hung up; then the audit ends soon.

        Raises:
            UnavailableError: An audit is running here, or ZooKeeper does not answer.
        """
        if self._running:
            raise UnavailableError(
                f"an audit is running on replica {self._cluster.replica} already; wait for its end"
            )
        self._running = True
        begun = time.monotonic()
        try:
            scratch = await asyncio.to_thread(
                AuditDatabase, self._settings.data_dir, f"audit-{next(self._number)}.db"
            )
            try:
                return await self._run(scratch, begun, deep=deep, abandoned=abandoned)
            finally:
                await asyncio.to_thread(scratch.close)
        finally:
            self._running = False

    async def _run(
        self, scratch: AuditDatabase, begun: float, *, deep: bool, abandoned: Callable[[], bool]
    ) -> AuditAnswer:
        settings = self._settings

        def stopped() -> bool:
            return abandoned() or time.monotonic() - begun > settings.audit_timeout_s

        facts = LogFacts(scratch, self._files, read=self._csn_log.records, barrier=self._tail)
        checks = self._checks(scratch, facts, deep=deep)
        results = await settled(checks, settle_s=settings.audit_settle_s, stopped=stopped)
        if deep:
            loop = asyncio.get_running_loop()

            def damaged(part: PartId, what: str) -> None:
                loop.call_soon_threadsafe(self._damaged, part, what)

            reading = DeepCheck(
                settings.data_dir,
                bytes_per_s=settings.audit_bytes_per_s,
                findings_max=settings.audit_findings_max,
                stopped=stopped,
                read=self._metrics.audit.bytes.inc,
                damaged=damaged,
            )
            results[reading.name] = await _run(reading)
        found = _in_order([finding for result in results.values() for finding in result.findings])
        for part, what in await asyncio.to_thread(self._damaged_parts, scratch, found):
            self._damaged(part, what)
        self._metrics.audit.findings.set(len(found))
        report = AuditAnswer(
            replica=self._cluster.replica,
            csn=facts.end,
            log_from=facts.log_from,
            outcome_floor=Csn(await asyncio.to_thread(scratch.meta, "outcome_floor")),
            deep=deep,
            seconds=round(time.monotonic() - begun, 3),
            checks=tuple(
                CheckReport(name, result.compared, len(result.findings)) for name, result in results.items()
            ),
            findings=tuple(found[: settings.audit_findings_max]),
            left_out=max(0, len(found) - settings.audit_findings_max),
        )
        _log.info("audited", csn=report.csn, deep=deep, findings=len(found), seconds=report.seconds)
        return report

    def _checks(self, scratch: AuditDatabase, facts: LogFacts, *, deep: bool) -> list[AuditCheck]:
        most = self._settings.audit_findings_max
        return [
            StructureCheck(scratch, deep=deep),
            CatalogCheck(scratch, rules.FILES, facts, findings_max=most, disk=self._settings.data_dir),
            *(
                CatalogCheck(scratch, one, facts, findings_max=most)
                for one in (rules.PARTS, rules.LOG, rules.OUTCOMES)
            ),
            UndecidedCheck(scratch, self._cluster),
            LockCheck(scratch, facts, self._cluster),
            LabelCheck(scratch, self._cluster),
            PinCheck(self._cluster),
            TableCheck(scratch, self._cluster),
            TagCheck(scratch, self._cluster),
            ProgressCheck(scratch, self._cluster),
        ]

    async def _tail(self) -> Csn:
        await self._csn_log.barrier()
        return await Znodes(self._cluster.store, rules.LOG.check).csn(tree.TAIL)

    def _damaged_parts(
        self, scratch: AuditDatabase, found: Sequence[AuditFinding]
    ) -> list[tuple[PartId, str]]:
        """Return the parts whose bytes are wrong or missing, with the findings."""
        return [
            (PartId(part), finding.found)
            for finding in found
            if finding.fault in _DAMAGE
            for part in ([finding.part] if finding.part else self._parts_in(scratch, finding.file or ""))
        ]

    def _parts_in(self, scratch: AuditDatabase, file: str) -> list[str]:
        sql = "SELECT part FROM parts WHERE file = :file AND state = 'held' LIMIT :most"
        args = {"file": file, "most": self._settings.audit_findings_max}
        return [row["part"] for row in scratch.rows(sql, args)]


async def settled(
    checks: Sequence[AuditCheck], *, settle_s: float, stopped: Callable[[], bool]
) -> dict[str, CheckResult]:
    """Run all checks; repeat those with findings until no finding is left or the findings have lasted.

    A finding counts if every run of its check has a finding about the same thing; the last one of them is
    reported.

    Args:
        checks: The checks, with distinct names.
        settle_s: Seconds that a finding has to last.
        stopped: Returns whether to wait no longer.
    """
    until = time.monotonic() + settle_s
    results = {check.name: await _run(check) for check in checks}
    pause_s, over = _PAUSE_FIRST_S, False
    while (left := [check for check in checks if results[check.name].findings]) and not over:
        over = time.monotonic() >= until or stopped()
        found = [_subject(one) for check in left for one in results[check.name].findings]
        _log.debug("audit_checks_again", found=found)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_MAX_S, max(_PAUSE_FIRST_S, until - time.monotonic()))
        for check in left:
            before = {_about(one) for one in results[check.name].findings}
            again = await _run(check)
            lasting = frozenset(one for one in again.findings if _about(one) in before)
            results[check.name] = CheckResult(again.compared, lasting)
    return results


def _about(one: AuditFinding) -> AuditFinding:
    """Return the subject of a finding, without its text: a bound in the text may change from look to look."""
    return msgspec.structs.replace(one, expected="", found="")


async def _run(check: AuditCheck) -> CheckResult:
    try:
        return await check.run()
    except (CorruptError, sqlite3.DatabaseError) as error:
        finding = AuditFinding(
            check=check.name,
            fault="unreadable",
            severity=Severity.ERROR,
            expected="what this check compares can be read",
            found=error.message if isinstance(error, CorruptError) else str(error),
            next_step="look at the agent's log; a damaged catalog is cloned again from another replica",
        )
        return CheckResult(0, frozenset({finding}))


def _subject(one: AuditFinding) -> str:
    return f"{one.fault} {one.part or one.file or one.znode or one.tid or one.csn or ''}"


def _in_order(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    """Return the findings in order: errors first, then by check and subject."""

    def key(one: AuditFinding) -> tuple[bool, str, str, str, str, str]:
        subject = (one.part or "", one.file or one.znode or "", one.tid or "")
        return one.severity is not Severity.ERROR, one.check, one.fault, *subject

    return sorted(findings, key=key)
