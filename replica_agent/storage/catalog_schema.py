"""The catalog's tables and indexes (docs/protocol.md#catalog).

The one place where its SQL schema is written, and the changes that lead from an earlier format to it.
"""

from __future__ import annotations

from tidelock.csnlog.core.visibility import VISIBLE_SQL
from tidelock.wire.peers import PartMeta

FORMAT = 18

#: The value of ``serve_from`` in ``meta`` while the end of the log is not known that the replica has to reach
#: before it serves: the catalog is new, or a clone.
SERVE_FROM_UNKNOWN = -1

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tables (
    id TEXT NOT NULL, version INTEGER NOT NULL, from_csn INTEGER NOT NULL, definition TEXT NOT NULL,
    arrow_schema BLOB NOT NULL, common_metadata BLOB NOT NULL, state TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (id, version)
) WITHOUT ROWID;
CREATE INDEX tables_by_name ON tables (name);
CREATE TABLE parts (
    part TEXT PRIMARY KEY, table_name TEXT NOT NULL, path TEXT NOT NULL,
    rows INTEGER NOT NULL, length INTEGER NOT NULL, checksum TEXT NOT NULL,
    creation_tid TEXT NOT NULL, creation_csn INTEGER, creation_change INTEGER NOT NULL DEFAULT 1,
    removal_tid TEXT, removal_csn INTEGER, removal_change INTEGER NOT NULL DEFAULT 1,
    file TEXT, offset INTEGER NOT NULL DEFAULT 0, blocks BLOB, stats TEXT,
    kind TEXT NOT NULL, state TEXT NOT NULL, form TEXT, source TEXT, columns_csn INTEGER
);
CREATE INDEX parts_by_table ON parts (table_name, creation_csn);
CREATE INDEX parts_by_removal ON parts (table_name, removal_csn);
CREATE INDEX parts_by_tid ON parts (creation_tid);
CREATE INDEX parts_present ON parts (table_name, path, creation_csn, removal_csn) WHERE removal_csn IS NULL;
CREATE INDEX parts_by_file ON parts (file);
CREATE INDEX parts_undecided ON parts (creation_tid) WHERE creation_csn IS NULL;
CREATE INDEX parts_removing ON parts (removal_tid) WHERE removal_tid IS NOT NULL AND removal_csn IS NULL;
CREATE INDEX parts_removed ON parts (removal_csn) WHERE removal_csn IS NOT NULL;
CREATE INDEX parts_not_held ON parts (state) WHERE state <> 'held';
CREATE INDEX parts_by_source ON parts (source) WHERE source IS NOT NULL;
CREATE TABLE files (path TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE undo (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE packs (path TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE prepared (tid TEXT PRIMARY KEY, home TEXT NOT NULL, boot INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE outcomes (
    tid TEXT PRIMARY KEY, csn INTEGER NOT NULL, time_ms INTEGER NOT NULL, label TEXT, batch INTEGER,
    carrier TEXT, progress TEXT
) WITHOUT ROWID;
CREATE INDEX outcomes_by_csn ON outcomes (csn);
CREATE INDEX outcomes_by_label ON outcomes (label, csn, batch) WHERE label IS NOT NULL;
CREATE TABLE table_horizons (table_name TEXT PRIMARY KEY, csn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE csns (
    csn INTEGER PRIMARY KEY, time_ms INTEGER NOT NULL, data_change INTEGER NOT NULL, czxid INTEGER,
    agreed_ms INTEGER
);
CREATE INDEX outcomes_of_batches ON outcomes (csn) WHERE batch IS NOT NULL;
CREATE TABLE table_changes (table_name TEXT PRIMARY KEY, csn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE skips (
    part TEXT PRIMARY KEY, table_name TEXT NOT NULL, rows INTEGER NOT NULL, csn INTEGER NOT NULL,
    tid TEXT NOT NULL, operator TEXT NOT NULL, why TEXT NOT NULL, without TEXT NOT NULL,
    time_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX skips_by_tid ON skips (tid);
CREATE TABLE skipped_records (
    csn INTEGER PRIMARY KEY, zxid INTEGER NOT NULL, digest TEXT NOT NULL, operator TEXT NOT NULL,
    why TEXT NOT NULL, time_ms INTEGER NOT NULL, tids TEXT NOT NULL, closes INTEGER NOT NULL
);
CREATE TABLE history (
    csn INTEGER NOT NULL, tid TEXT NOT NULL, table_name TEXT NOT NULL, name TEXT NOT NULL,
    time_ms INTEGER NOT NULL, action TEXT NOT NULL, rows_added INTEGER NOT NULL,
    rows_removed INTEGER NOT NULL, parts_added INTEGER NOT NULL, parts_removed INTEGER NOT NULL,
    label TEXT, batch INTEGER, meta TEXT, PRIMARY KEY (csn, tid, table_name)
) WITHOUT ROWID;
CREATE TABLE tags (
    name TEXT PRIMARY KEY, csn INTEGER NOT NULL, made_csn INTEGER NOT NULL, made_ms INTEGER NOT NULL,
    keep_s REAL
) WITHOUT ROWID;
"""

#: For each earlier format that can be read the statements that lead to the next format. A new column is the
#: last one of its table in the schema as well.
MIGRATIONS = {
    3: """
    ALTER TABLE csns ADD COLUMN czxid INTEGER;
    INSERT INTO meta VALUES ('last_digest', ''), ('zxid_max', 0);
    """,
    4: """
    ALTER TABLE csns ADD COLUMN agreed_ms INTEGER;
    CREATE INDEX outcomes_of_batches ON outcomes (csn) WHERE batch IS NOT NULL;
    CREATE TABLE table_changes (table_name TEXT PRIMARY KEY, csn INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO table_changes SELECT name, max(csn) FROM (
        SELECT name, from_csn AS csn FROM tables
        UNION ALL SELECT table_name, creation_csn FROM parts WHERE creation_csn > 0 AND creation_change
        UNION ALL SELECT table_name, removal_csn FROM parts WHERE removal_csn > 0 AND removal_change
    ) WHERE name <> '' GROUP BY name;
    """,
    # Versions of format 5 made this table at each start where it did not exist, whatever the format was.
    5: """
    CREATE TABLE IF NOT EXISTS skips (
        part TEXT PRIMARY KEY, table_name TEXT NOT NULL, rows INTEGER NOT NULL, csn INTEGER NOT NULL,
        tid TEXT NOT NULL, operator TEXT NOT NULL, why TEXT NOT NULL, without TEXT NOT NULL,
        time_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS skips_by_tid ON skips (tid);
    """,
    6: """
    CREATE TABLE skipped_records (
        csn INTEGER PRIMARY KEY, zxid INTEGER NOT NULL, digest TEXT NOT NULL, operator TEXT NOT NULL,
        why TEXT NOT NULL, time_ms INTEGER NOT NULL, tids TEXT NOT NULL, closes INTEGER NOT NULL
    );
    """,
    7: "ALTER TABLE outcomes ADD COLUMN carrier TEXT;",
    8: "ALTER TABLE parts ADD COLUMN form TEXT;",
    9: "CREATE TABLE packs (path TEXT PRIMARY KEY) WITHOUT ROWID;",
    # A part may be of the kind 'landed', which versions of format 10 would delete.
    10: "",
    11: "CREATE INDEX parts_by_removal ON parts (table_name, removal_csn);",
    12: """
    ALTER TABLE tables RENAME COLUMN name TO id;
    ALTER TABLE tables ADD COLUMN name TEXT NOT NULL DEFAULT '';
    UPDATE tables SET name = id;
    CREATE INDEX tables_by_name ON tables (name);
    """,
    13: """
    ALTER TABLE parts ADD COLUMN source TEXT;
    CREATE INDEX parts_by_source ON parts (source) WHERE source IS NOT NULL;
    """,
    14: """
    CREATE TABLE history (
        csn INTEGER NOT NULL, tid TEXT NOT NULL, table_name TEXT NOT NULL, name TEXT NOT NULL,
        time_ms INTEGER NOT NULL, action TEXT NOT NULL, rows_added INTEGER NOT NULL,
        rows_removed INTEGER NOT NULL, parts_added INTEGER NOT NULL, parts_removed INTEGER NOT NULL,
        label TEXT, batch INTEGER, meta TEXT, PRIMARY KEY (csn, tid, table_name)
    ) WITHOUT ROWID;
    """,
    15: """
    CREATE TABLE tags (
        name TEXT PRIMARY KEY, csn INTEGER NOT NULL, made_csn INTEGER NOT NULL, made_ms INTEGER NOT NULL,
        keep_s REAL
    ) WITHOUT ROWID;
    """,
    16: "ALTER TABLE parts ADD COLUMN columns_csn INTEGER;",
    17: "ALTER TABLE outcomes ADD COLUMN progress TEXT;",
}

#: Where the visible parts of one table come from, with the parameters of `visible_args` and ``table``. Most
#: parts of a table that keeps a history were removed before the CSN. An index leaves them out: without it a
#: list of ten parts read thousands, which compaction had replaced.
VISIBLE_OF_TABLE = f"""(
    SELECT * FROM parts INDEXED BY parts_by_removal WHERE table_name = :table AND removal_csn IS NULL
    UNION ALL
    SELECT * FROM parts INDEXED BY parts_by_removal WHERE table_name = :table AND removal_csn > :s
) WHERE kind = 'part' AND {VISIBLE_SQL}"""  # noqa: S608 - two constants

#: A held part with the bytes of a part: one of the same origin, with the same length and checksum. Its
#: parameters are those of `twin_args`.
TWIN_SQL = """
    FROM parts WHERE (part = :origin OR source = :origin) AND part <> :part AND state = 'held'
    AND kind = 'part' AND length = :length AND checksum = :checksum ORDER BY part LIMIT 1
"""


def twin_args(meta: PartMeta) -> dict[str, str | int]:
    """Return the parameters of :data:`TWIN_SQL` for a part."""
    return {
        "origin": meta.origin, "part": meta.part, "length": meta.length, "checksum": meta.checksum,
    }  # fmt: skip
