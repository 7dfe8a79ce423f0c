"""The rules of the catalog against disk, log and itself: each rule finds its violations. Pure.

A rule is a query over the facts of :mod:`tidelock.replica_agent.audit.scratch` and the catalog, and all rules
of one check see the same state of both. Its columns are fields of a finding. Parameters: ``:s`` CSN up to
which the log was read, ``:log_from`` CSN from which on, ``:horizon``, ``:tail`` and ``:floor`` (of outcomes)
as the catalog has noted them, ``:block`` bytes of a block and ``:digest`` bytes of its digest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tidelock.wire.audit import Severity


class Rule(msgspec.Struct, frozen=True):
    """One rule: its subject, what to do, and the query that finds its violations."""

    fault: str
    next_step: str
    sql: str
    severity: Severity = Severity.ERROR


class RuleSet(msgspec.Struct, frozen=True):
    """The rules of one check; the sum of the ``counts`` queries is the number of things checked."""

    check: str
    counts: tuple[str, ...]
    rules: tuple[Rule, ...]


_FETCHED: Final = (
    "it is read again now, and fetched from another replica if it is damaged; run the audit again"
)
_CONTRADICTION: Final = (
    "this replica contradicts the log: stop its agent, keep a copy of catalog.db, report it, and let it "
    "clone from another replica"
)
_FROM_A_COPY: Final = "the files of a restored or damaged data directory: " + _CONTRADICTION

# ---------------------------------------------------------------------------------------------------- files

FILES: Final = RuleSet(
    "files",
    ("SELECT count(*) FROM disk", "SELECT count(*) FROM files"),
    (
        Rule(
            "surplus_file",
            "no part is read from it; delete it while the agent is stopped",
            """
            SELECT path AS file, 'a row of files, of undo or of packs' AS expected,
                   bytes || ' bytes on the disk and no row' AS found
            FROM disk
            WHERE NOT EXISTS (SELECT 1 FROM files WHERE files.path = disk.path)
              AND NOT EXISTS (SELECT 1 FROM undo WHERE undo.path = disk.path)
              AND NOT EXISTS (SELECT 1 FROM packs WHERE packs.path = disk.path)
            """,
            Severity.WARNING,
        ),
        Rule(
            "missing_file",
            "its parts are fetched from another replica now; run the audit again",
            """
            SELECT f.path AS file, f.bytes || ' bytes on the disk' AS expected, 'no file' AS found
            FROM files f
            WHERE NOT EXISTS (SELECT 1 FROM disk WHERE disk.path = f.path)
              AND EXISTS (SELECT 1 FROM parts p WHERE p.file = f.path AND p.state = 'held')
            """,
        ),
        Rule(
            "file_size",
            _FETCHED,
            """
            -- A pack without its end has all that is read from it, once the parts there lie elsewhere.
            SELECT path AS file, f.bytes || ' bytes' AS expected, d.bytes || ' bytes' AS found
            FROM files f JOIN disk d USING (path)
            WHERE d.bytes > f.bytes OR (d.bytes < f.bytes AND EXISTS (
                SELECT 1 FROM parts p
                WHERE p.file = f.path AND p.state = 'held' AND p.offset + p.length > d.bytes
            ))
            """,
        ),
        Rule(
            "file_without_part",
            "no part lies in it; the next start of this agent deletes it",
            """
            SELECT path AS file, 'a row of parts that names it' AS expected,
                   'a row of files of ' || bytes || ' bytes, and none of parts' AS found
            FROM files WHERE NOT EXISTS (SELECT 1 FROM parts WHERE parts.file = files.path)
            """,
            Severity.WARNING,
        ),
    ),
)

# ---------------------------------------------------------------------------------------------------- parts

PARTS: Final = RuleSet(
    "parts",
    ("SELECT count(*) FROM parts",),
    (
        Rule(
            "part_without_file",
            _FROM_A_COPY,
            """
            SELECT table_name AS "table", part, file, creation_csn AS csn,
                   'the row of its file' AS expected,
                   CASE WHEN file IS NULL THEN 'held, and no file' ELSE 'no row of files' END AS found
            FROM parts WHERE state = 'held'
              AND NOT EXISTS (SELECT 1 FROM files WHERE files.path = parts.file)
            """,
        ),
        Rule(
            "range_beyond_file",
            _FROM_A_COPY,
            """
            SELECT table_name AS "table", part, file, 'a range within ' || bytes || ' bytes' AS expected,
                   length || ' bytes from ' || offset AS found
            FROM parts JOIN files ON files.path = parts.file
            WHERE state = 'held' AND (offset < 0 OR length < 0 OR offset + length > bytes)
            """,
        ),
        Rule(
            "ranges_overlap",
            _FROM_A_COPY,
            # Two parts can have the same range: a partition that was moved to another table.
            """
            SELECT file, 'ranges that do not overlap' AS expected,
                   length || ' bytes from ' || offset || ', and another range up to ' || up_to AS found
            FROM (
                SELECT file, offset, length, max(offset + length) OVER (
                    PARTITION BY file ORDER BY offset, length
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS up_to
                FROM (SELECT DISTINCT file, offset, length FROM parts
                      WHERE state = 'held' AND file IS NOT NULL))
            WHERE up_to > offset
            """,
        ),
        Rule(
            "one_range_two_checksums",
            _FROM_A_COPY,
            """
            SELECT file, 'one checksum for the ' || length || ' bytes from ' || offset AS expected,
                   min(checksum) || ' and ' || max(checksum) AS found
            FROM parts WHERE state = 'held' AND file IS NOT NULL
            GROUP BY file, offset, length HAVING count(DISTINCT checksum) > 1
            """,
        ),
        Rule(
            "digests_of_another_length",
            _FROM_A_COPY,
            """
            SELECT table_name AS "table", part, file,
                   :digest * ((length + :block - 1) / :block) || ' bytes of digests' AS expected,
                   coalesce(length(blocks), 0) || ' bytes' AS found
            FROM parts WHERE state = 'held'
              AND coalesce(length(blocks), 0) <> :digest * ((length + :block - 1) / :block)
            """,
        ),
        Rule(
            "part_not_held",
            "it is fetched from another replica; if that fails, see the agent's log for the reason",
            """
            SELECT table_name AS "table", part, creation_csn AS csn, 'held' AS expected, state AS found
            FROM parts WHERE state <> 'held' AND creation_csn <= :s
            """,
        ),
        Rule(
            "contradictory_csns",
            _CONTRADICTION,
            """
            SELECT table_name AS "table", part,
                   'creation before removal, both up to the snapshot CSN' AS expected,
                   'created at ' || coalesce(creation_csn, 'none') || ', removed at '
                   || coalesce(removal_csn, 'none') || ' by ' || coalesce(removal_tid, 'nobody')
                   || ', snapshot CSN ' || m.value AS found
            FROM parts JOIN meta m ON m.key = 'snapshot_csn'
            WHERE removal_csn IS NOT NULL
                  AND (removal_tid IS NULL OR creation_csn IS NULL OR removal_csn <= creation_csn)
               OR creation_csn > m.value OR removal_csn > m.value
            """,
        ),
        Rule(
            "part_declared_lost",
            "an operator has declared it; write the rows again if there is another source of them",
            """
            SELECT table_name AS "table", part, tid, csn, 'the part that its record adds' AS expected,
                   'declared lost by ' || operator || ': ' || why AS found
            FROM skips
            """,
            Severity.WARNING,
        ),
        Rule(
            "record_skipped",
            "an operator has had it skipped; write its changes again if there is another source of them",
            """
            SELECT csn, 'its transactions' AS expected,
                   'skipped by ' || operator || ': ' || why
                   || iif(tids = '[]', '', '; it held ' || tids) AS found
            FROM skipped_records
            """,
            Severity.WARNING,
        ),
        Rule(
            "part_of_no_table",
            _CONTRADICTION,
            """
            SELECT table_name AS "table", part, creation_csn AS csn, 'a table with a definition' AS expected,
                   'no definition' AS found
            FROM parts WHERE kind = 'part' AND creation_csn <= :s
              AND NOT EXISTS (SELECT 1 FROM tables WHERE id = table_name)
            """,
        ),
    ),
)

# ------------------------------------------------------------------------------------------------------ log

#: A part as a text with everything that a record says about it.
_SAID: Final = (
    "{0}.table_name || ' ' || {0}.path || ' ' || {0}.rows || ' rows, ' || {0}.length || ' bytes, ' "
    "|| {0}.checksum || coalesce(', shares the bytes of ' || {0}.source, '') "
    "|| coalesce(' with the columns of ' || {0}.columns_csn, '')"
)

LOG: Final = RuleSet(
    "log",
    (
        "SELECT count(*) FROM log_csns",
        "SELECT count(*) FROM log_parts",
        "SELECT count(*) FROM log_removals",
    ),
    (
        Rule(
            "record_without_row",
            _CONTRADICTION,
            """
            SELECT l.table_name AS "table", l.part, l.tid, l.csn, 'a row: the log adds it' AS expected,
                   'no row' AS found
            FROM log_parts l
            WHERE NOT EXISTS (SELECT 1 FROM parts p WHERE p.part = l.part)
              AND NOT EXISTS (SELECT 1 FROM log_removals r WHERE r.part = l.part AND r.csn <= :horizon)
              AND NOT EXISTS (SELECT 1 FROM log_drops d
                              WHERE d.table_name = l.table_name AND d.csn BETWEEN l.csn AND :horizon)
              AND NOT EXISTS (SELECT 1 FROM skips k WHERE k.part = l.part)
              AND NOT (l.kind = 'manifest' AND l.csn < :tail)
            """,
        ),
        Rule(
            "row_differs_from_record",
            _CONTRADICTION,
            f"""
            SELECT l.table_name AS "table", l.part, l.tid, l.csn,
                   'created at ' || l.csn || ' by ' || l.tid || ', ' || {_SAID.format("l")}
                   || iif(l.change, '', ', no change of rows') AS expected,
                   'created at ' || coalesce(p.creation_csn, 'none') || ' by ' || p.creation_tid || ', '
                   || {_SAID.format("p")} || iif(p.creation_change, '', ', no change of rows') AS found
            FROM log_parts l JOIN parts p USING (part)
            WHERE (p.creation_csn, p.creation_tid, p.table_name, p.path, p.rows, p.length, p.checksum, p.kind,
                   p.source, p.columns_csn)
                  IS NOT (l.csn, l.tid, l.table_name, l.path, l.rows, l.length, l.checksum, l.kind,
                          l.source, l.columns_csn)
               OR (l.kind = 'part' AND p.creation_change <> l.change)
            """,  # noqa: S608
        ),
        Rule(
            "row_without_record",
            _CONTRADICTION,
            """
            SELECT table_name AS "table", part, creation_tid AS tid, creation_csn AS csn,
                   'a record that adds it at that CSN' AS expected,
                   'a row created at ' || creation_csn || ', and no such record' AS found
            FROM parts p
            WHERE creation_csn BETWEEN :log_from AND :s AND creation_csn > 1
              AND NOT EXISTS (SELECT 1 FROM log_parts l WHERE l.part = p.part)
              AND NOT EXISTS (SELECT 1 FROM log_unread u WHERE u.tid = p.creation_tid)
            """,
        ),
        Rule(
            "removal_missing",
            _CONTRADICTION,
            """
            SELECT l.table_name AS "table", l.part, l.tid, l.csn,
                   'removed at ' || l.csn || ' by ' || l.tid
                   || iif(l.change, '', ', no change of rows') AS expected,
                   'removed at ' || coalesce(p.removal_csn, 'none') || ' by '
                   || coalesce(p.removal_tid, 'nobody') || iif(p.removal_change, '', ', no change of rows')
                   AS found
            FROM log_removals l JOIN parts p USING (part)
            WHERE (p.removal_csn, p.removal_tid, p.table_name, p.removal_change)
                  IS NOT (l.csn, l.tid, l.table_name, l.change)
            """,
        ),
        Rule(
            "drop_missing",
            _CONTRADICTION,
            """
            SELECT d.table_name AS "table", p.part, d.tid, d.csn,
                   'removed at ' || d.csn || ' or before: the log drops the table there' AS expected,
                   coalesce('removed at ' || p.removal_csn, 'not removed') AS found
            FROM log_drops d JOIN parts p USING (table_name)
            WHERE d.csn <= :s AND p.creation_csn < d.csn -- who has removed it there: removal_without_record
              AND coalesce(p.removal_csn > d.csn, true)
            """,
        ),
        Rule(
            "removal_without_record",
            _CONTRADICTION,
            """
            SELECT table_name AS "table", part, removal_tid AS tid, removal_csn AS csn,
                   'a record that removes it at that CSN' AS expected,
                   'removed at ' || removal_csn || ', and no such record' AS found
            FROM parts p
            WHERE removal_csn BETWEEN :log_from AND :s
              AND NOT EXISTS (SELECT 1 FROM log_removals l WHERE l.part = p.part)
              AND NOT EXISTS (SELECT 1 FROM log_drops d WHERE (d.table_name, d.csn, d.tid)
                              = (p.table_name, p.removal_csn, p.removal_tid))
              AND NOT EXISTS (SELECT 1 FROM log_unread u WHERE u.tid = p.removal_tid)
            """,
        ),
        Rule(
            "manifest_unread",
            "the manifest is fetched from another replica; run the audit again",
            """
            SELECT part, tid, csn, 'the entries of the transaction, in its manifest' AS expected, why AS found
            FROM log_unread u WHERE csn >= :tail AND NOT EXISTS (SELECT 1 FROM skips k WHERE k.part = u.part)
            """,
        ),
        Rule(
            "record_without_time",
            _CONTRADICTION,
            """
            SELECT l.csn, 'the time of that CSN' AS expected, 'no row of csns' AS found
            FROM log_csns l WHERE csn > :horizon AND NOT EXISTS (SELECT 1 FROM csns c WHERE c.csn = l.csn)
            """,
        ),
        Rule(
            "time_without_record",
            _CONTRADICTION,
            """
            SELECT csn, 'a record of that CSN' AS expected, 'a row of csns, and no record' AS found
            FROM csns c WHERE csn BETWEEN :log_from AND :s
              AND NOT EXISTS (SELECT 1 FROM log_csns l WHERE l.csn = c.csn)
            """,
        ),
        Rule(
            "time_differs",
            _CONTRADICTION,
            # As tidelock.csnlog.core.log_time.Clocking.after. A later record that has let the time step back
            # has made these times again: the record's own time was wrong, or is not known. It has got the
            # time before it then, which is not known for the first record of the kept log.
            """
            SELECT csn, expected || ' ms' AS expected, time_ms || ' ms' AS found
            FROM (SELECT c.csn, c.time_ms, b.time_ms AS before_ms, l.time_ms AS agreed_ms,
                         iif(b.time_ms > l.wrong_above_ms, l.time_ms,
                             max(l.time_ms, coalesce(b.time_ms, c.time_ms))) AS expected
                  FROM log_csns l JOIN csns c USING (csn) LEFT JOIN csns b ON b.csn = l.before) AS t
            WHERE time_ms <> expected AND NOT EXISTS (
                SELECT 1 FROM log_csns later WHERE later.csn > t.csn AND later.time_ms < t.agreed_ms
                AND t.time_ms <= later.time_ms
                AND t.time_ms IN (coalesce(t.before_ms, t.time_ms), later.time_ms))
            """,
        ),
        Rule(
            "change_differs",
            _CONTRADICTION,
            """
            SELECT c.csn, iif(l.change, 'a change of rows', 'no change of rows') AS expected,
                   iif(c.data_change, 'a change of rows', 'no change of rows') AS found
            FROM log_csns l JOIN csns c USING (csn) WHERE c.data_change <> l.change
            """,
        ),
        Rule(
            "csn_of_no_record",
            _CONTRADICTION,
            # Below the log too: the time of a CSN remains as long as a part has that CSN.
            """
            SELECT table_name AS "table", part, creation_tid AS tid, creation_csn AS csn,
                   'a CSN of the log, whose time is kept' AS expected, 'no row of csns' AS found
            FROM parts p WHERE creation_csn > 1 AND creation_csn <= :s AND creation_csn < :log_from
              AND NOT EXISTS (SELECT 1 FROM csns c WHERE c.csn = p.creation_csn)
            """,
        ),
    ),
)

# ------------------------------------------------------------------------------------------------- outcomes

OUTCOMES: Final = RuleSet(
    "outcomes",
    ("SELECT count(*) FROM outcomes", "SELECT count(*) FROM log_tids"),
    (
        Rule(
            "record_without_outcome",
            _CONTRADICTION,
            """
            SELECT tid, csn, 'the outcome committed at ' || csn AS expected, 'none' AS found
            FROM log_tids l WHERE csn > :floor
              AND NOT EXISTS (SELECT 1 FROM outcomes o WHERE o.tid = l.tid)
            """,
        ),
        Rule(
            "outcome_differs",
            _CONTRADICTION,
            """
            SELECT l.tid, l.csn,
                   'committed at ' || l.csn || ', label ' || coalesce(l.label, 'none')
                       || coalesce(', batch ' || l.batch, '')
                       || coalesce(', progress ' || l.progress, '') AS expected,
                   'committed at ' || o.csn || ', label ' || coalesce(o.label, 'none')
                       || coalesce(', batch ' || o.batch, '')
                       || coalesce(', progress ' || o.progress, '') AS found
            FROM log_tids l JOIN outcomes o USING (tid)
            WHERE (l.csn, l.label, l.batch, l.progress) IS NOT (o.csn, o.label, o.batch, o.progress)
            """,
        ),
        Rule(
            "outcome_without_record",
            _CONTRADICTION,
            """
            SELECT tid, csn, 'a record with that transaction' AS expected,
                   'committed at ' || csn || ', and no such record' AS found
            FROM outcomes o WHERE csn BETWEEN :log_from AND :s
              AND NOT EXISTS (SELECT 1 FROM log_tids l WHERE l.tid = o.tid)
            """,
        ),
        Rule(
            "outcome_of_the_future",
            _CONTRADICTION,
            """
            SELECT tid, csn, 'a CSN up to the snapshot CSN ' || value AS expected,
                   'committed at ' || csn AS found
            FROM outcomes JOIN meta ON key = 'snapshot_csn' WHERE csn > value
            """,
        ),
    ),
)
