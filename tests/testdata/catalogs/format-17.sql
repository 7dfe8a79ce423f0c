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
    carrier TEXT
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
INSERT INTO meta VALUES
    ('format', 17), ('snapshot_csn', 4), ('time_ms', 4000), ('boot', 2), ('fence', 3), ('tail', 0),
    ('horizon', 0), ('outcome_floor', 0), ('replica', 'r1'), ('disk', 'd1'), ('cluster_id', 'c1'),
    ('last_digest', ''), ('zxid_max', 0);
INSERT INTO csns VALUES (2, 2000, 1, NULL, NULL), (3, 3000, 0, NULL, NULL),
    (4, 4000, 1, NULL, NULL);
INSERT INTO outcomes VALUES ('1-r1-1-1', 2, 2000, 'load', NULL, NULL),
    ('3-r2-1-7', 4, 4000, NULL, NULL, NULL);
