"""The manifest of a clone: a catalog as one SQLite file, without files and without what is collected.

The rows are read in one transaction, so they are those of one snapshot CSN. The file has the tables of the
catalog that it was made from, without indexes. What belongs to the sender alone stays out: the places of its
bytes, its identity, its undo rows, its prepared marks. Every part has the state ``wanted``.

Receiving a manifest replaces the catalog (rule clone; F8). Rows that the manifest lacks are forgotten, since
a part that was removed and collected everywhere would be visible again. Parts whose bytes are here keep them.
So do those that the log may add behind the manifest: this disk may be the last one that has them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from tidelock.csnlog.core.ids import CSN_NONE, Csn, PartId, Tid, parse_part_id
from tidelock.csnlog.core.imprint import NEXT_STEP
from tidelock.csnlog.core.labels import landing_label
from tidelock.csnlog.core.skipped import Skips, shown_instead
from tidelock.errors import (
    ClusterMismatchError,
    CorruptError,
    TidelockError,
    UnavailableError,
    UpgradeNeededError,
)
from tidelock.replica_agent.storage import catalog_writes as jobs
from tidelock.replica_agent.storage.catalog_garbage import COLLECTABLE_SQL
from tidelock.replica_agent.storage.catalog_reads import skipped_records
from tidelock.replica_agent.storage.catalog_schema import FORMAT, SERVE_FROM_UNKNOWN
from tidelock.replication.core.digest import RangeDigest
from tidelock.replication.core.model import Location

#: Tables that say what lies on the disk of the sender.
_OF_THE_DISK: Final = frozenset({"files", "undo", "packs", "prepared"})
#: Rows of ``meta`` that say who a replica is, and what its own boots have seen.
_OF_THE_REPLICA: Final = (
    "replica",
    "disk",
    "cluster_id",
    "boot",
    "fence",
    "clone",
    "serve_from",
    "clone_base",
    "forced",
)
#: Columns of ``parts`` that say where the bytes are.
_OF_THE_BYTES: Final = frozenset({"file", "offset", "blocks"})
#: Bytes that one read of a checksum gets.
_READ_BYTES: Final = 1 << 20
#: Steps of SQLite between two questions whether the manifest is still needed: some milliseconds.
_STEPS: Final = 100_000


class ManifestFacts(msgspec.Struct, frozen=True):
    """A finished manifest.

    Attributes:
        csn: The snapshot CSN of its rows.
        length: Bytes of the file.
        checksum: XXH3-128 of these bytes.
    """

    csn: Csn
    length: int
    checksum: str


def write_manifest(data_dir: Path, path: Path, given_up: Callable[[], bool] = lambda: False) -> ManifestFacts:
    """Write the manifest of a catalog to a new file, in bounded memory; blocks for as long as that takes.

    Args:
        data_dir: The data directory with the catalog.
        path: The file, which is not made durable: a clone that breaks off begins again.
        given_up: Asked now and then, in the calling thread: whether nobody needs the manifest any more.

    Raises:
        UnavailableError, sqlite3.Error, OSError: It could not be written, or was given up.
    """
    with closing(sqlite3.connect(f"file:{path}", uri=True, isolation_level=None)) as db:
        db.set_progress_handler(given_up, _STEPS)
        for pragma in ("journal_mode = OFF", "synchronous = OFF"):
            db.execute(f"PRAGMA {pragma}")
        db.execute("ATTACH ? AS source", (f"file:{data_dir / 'catalog.db'}?mode=ro",))
        db.execute("BEGIN")  # the first read below fixes the state of the source for all others
        csn = _copy(db)
        db.execute("COMMIT")
    return ManifestFacts(csn, path.stat().st_size, _checksum_of(path, given_up))


def _copy(db: sqlite3.Connection) -> Csn:
    tables = db.execute(
        "SELECT name, sql FROM source.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    for name, sql in tables:
        db.execute(sql)
        if name not in {*_OF_THE_DISK, "meta", "parts"}:
            db.execute(f'INSERT INTO main."{name}" SELECT * FROM source."{name}"')  # noqa: S608
    marks = ",".join("?" * len(_OF_THE_REPLICA))
    sql = f"INSERT INTO main.meta SELECT * FROM source.meta WHERE key NOT IN ({marks})"  # noqa: S608
    db.execute(sql, _OF_THE_REPLICA)
    _copy_parts(db)
    return Csn(_meta(db, "snapshot_csn"))


def _copy_parts(db: sqlite3.Connection) -> None:
    """Copy the parts that are not collected: visible, removed above the horizon, and undecided.

    An undecided part is of use if its bytes are there. A mark of a removal that is undecided belongs to a
    transaction of the sender, and stays out.
    """
    columns = [name for name in _columns(db, "parts") if name not in _OF_THE_BYTES]
    chosen = {
        "state": "'wanted'",
        "removal_tid": "CASE WHEN p.removal_csn IS NULL THEN NULL ELSE p.removal_tid END",
    }
    values = ", ".join(chosen.get(name, f"p.{name}") for name in columns)
    db.execute(
        f"""
        INSERT INTO main.parts ({", ".join(columns)}) SELECT {values}
        FROM source.parts p LEFT JOIN source.table_horizons h ON h.table_name = p.table_name
        WHERE (p.creation_csn IS NOT NULL OR p.state = 'held')
            AND NOT coalesce({COLLECTABLE_SQL}, 0)
            AND NOT (p.kind = 'manifest' AND coalesce(p.creation_csn, :t) < :t)
        """,  # noqa: S608
        {"h": _meta(db, "horizon"), "t": _meta(db, "tail")},
    )


def _checksum_of(path: Path, given_up: Callable[[], bool] = lambda: False) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            if given_up():
                raise UnavailableError("the manifest is not needed any more")
            digest.update(data)
    return digest.hexdigest()


class FoundPart(msgspec.Struct, frozen=True):
    """The whole bytes of a part of a manifest, in a file that the own catalog does not name."""

    part: PartId
    location: Location


def find_parts(data_dir: Path, manifest: Path, files: Collection[str]) -> list[FoundPart]:
    """Return the parts of a manifest that have one of these files, if its length and checksum are right.

    Args:
        data_dir: The data directory.
        manifest: The manifest.
        files: Paths below the data directory; packs are not looked into.
    """
    found: list[FoundPart] = []
    with _opened(manifest) as db:
        for path in sorted(files):
            part = PartId(Path(path).stem)
            sql = "SELECT length, checksum FROM parts WHERE part = ? AND kind = 'part'"
            wanted = db.execute(sql, (part,)).fetchone()
            if wanted is None or not path.endswith(".parquet") or not _is_part(part):
                continue
            digest = _digest_of(data_dir / path, wanted[0])
            if digest is not None and digest.checksum() == wanted[1]:
                found.append(FoundPart(part, Location(path, 0, wanted[0], digest.blocks())))
    return found


def _is_part(name: str) -> bool:
    try:
        parse_part_id(PartId(name))
    except ValueError:
        return False
    return True


def _digest_of(path: Path, length: int) -> RangeDigest | None:
    """Return the digest of a file of this length; None if it has another one or cannot be read."""
    digest = RangeDigest()
    try:
        if path.stat().st_size != length:
            return None
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
    except OSError:
        return None
    return digest


def check_manifest(path: Path, checksum: str) -> None:
    """Raise unless a manifest has this checksum, and this version can take it.

    Raises:
        UpgradeNeededError: A newer version has written it.
        CorruptError: Its bytes are wrong, or an older version has written it.
    """
    sent = _checksum_of(path)
    if sent != checksum:
        raise CorruptError(
            f"the manifest came with checksum {sent}, expected {checksum}; it is asked for again"
        )
    with _opened(path) as db:
        check_format(_meta(db, "format"))


def check_skips(path: Path, skips: Skips) -> None:
    """Raise CorruptError if the catalog of a manifest shows a record that an operator has had skipped."""
    with _opened(path) as db:
        shown = shown_instead(Csn(_meta(db, "snapshot_csn")), skipped_records(db).keys(), skips)
    if shown is not None:
        raise CorruptError(
            f"the peer has applied the record of CSN {shown}, which {skips[shown].by} has had skipped: it "
            "has to clone itself; another peer is asked",
            csn=shown,
        )


def check_format(found: int) -> None:
    """Raise unless this version can take a manifest of a catalog format.

    Raises:
        UpgradeNeededError: A newer version has written it.
        CorruptError: An older version has written it.
    """
    if found > FORMAT:
        raise UpgradeNeededError(
            f"the manifest has catalog format {found}, this version reads {FORMAT}: upgrade this replica"
        )
    if found < FORMAT:
        raise CorruptError(
            f"the manifest has catalog format {found}, this version reads {FORMAT}: upgrade the peer first"
        )


def install(
    db: sqlite3.Connection, manifest: Path, *, disk: str, files: Collection[str], found: Collection[FoundPart]
) -> None:
    """Replace the catalog by a manifest: a job for :meth:`Catalog.write`, all of it or nothing.

    Bytes that are here stay: those that the replaced catalog names for the same part, length and checksum,
    those of ``found``, those that the log may add behind the manifest, and rows that landed here, if the
    manifest proves that nobody has brought them (rule landing). All other files become undo rows, which the
    next start deletes.

    Args:
        db: The catalog.
        manifest: The file of the manifest.
        disk: The new id of the data directory, as the session znode shows it.
        files: All part files and packs in the data directory.
        found: See :func:`find_parts`.

    Raises:
        ClusterMismatchError: The catalog has another history than the manifest; nothing was changed.
    """
    db.execute("DROP TABLE IF EXISTS temp.kept")
    db.execute(
        """
        CREATE TEMP TABLE kept AS
        SELECT part, length, checksum, file, offset, blocks FROM parts
        WHERE state = 'held' AND file IS NOT NULL
        """
    )
    with _opened(manifest) as source:
        _require_one_history(db, source)
        landed = _landed_here(db, source)
        _set_undecided_aside(db, source)
        _replace_rows(db, source)
    _keep_landed(db, landed)
    _keep_bytes(db, found)
    _keep_undecided(db)
    db.execute("DROP TABLE temp.kept")
    jobs.note_undo(db, files)
    db.execute("DELETE FROM files WHERE path NOT IN (SELECT file FROM parts WHERE file IS NOT NULL)")
    db.execute("DELETE FROM undo WHERE path IN (SELECT path FROM files)")
    jobs.set_meta(db, disk=disk, clone="", serve_from=SERVE_FROM_UNKNOWN)
    db.execute("INSERT OR REPLACE INTO meta SELECT 'clone_base', value FROM meta WHERE key = 'snapshot_csn'")


def _require_one_history(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
    """Raise ClusterMismatchError if the two know different records at one CSN.

    A start compares the last record with ZooKeeper only while ZooKeeper has it. That of a replica that was
    struck may be deleted, and then nothing else says that the log was set back and went on without it: its
    catalog is the last one that has the commits of before (rule follow).
    """
    sql = "SELECT csn, czxid, agreed_ms FROM csns WHERE czxid > 0 ORDER BY csn"
    there = {csn: (zxid, agreed_ms) for csn, zxid, agreed_ms in source.execute(sql)}
    for csn, zxid, agreed_ms in db.execute(sql):
        if csn in there and there[csn] != (zxid, agreed_ms):
            raise ClusterMismatchError(
                f"ZooKeeper holds another history: at CSN {csn} this replica has applied the record with "
                f"zxid {zxid:#x}, and the peer that it should clone one with zxid {there[csn][0]:#x}. "
                "It was set back to an older state, and other commits have got its CSNs. "
                f"{NEXT_STEP}; if the commits of this replica are not wanted, empty its data directory, "
                "and start it with --replace-disk"
            )


def _replace_rows(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
    for name in _tables(db):
        if name in {"files", "undo"}:
            continue
        if name == "meta":
            rows = source.execute("SELECT key, value FROM meta")
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)
            continue
        db.execute(f'DELETE FROM "{name}"')  # noqa: S608
        columns = ", ".join(_columns(source, name))
        marks = ", ".join("?" * len(_columns(source, name)))
        rows = source.execute(f'SELECT {columns} FROM "{name}"')  # noqa: S608
        db.executemany(f'INSERT INTO "{name}" ({columns}) VALUES ({marks})', rows)  # noqa: S608


class _Landed(msgspec.Struct, frozen=True):
    """A landing that a catalog holds: its parts as rows of ``parts``, and its mark."""

    parts: list[tuple[Any, ...]]
    prepared: tuple[Any, ...]


def _landed_here(db: sqlite3.Connection, source: sqlite3.Connection) -> list[_Landed]:
    """Return the landings that are confirmed here, whole, and of which the manifest would know a commit.

    It would know the commit of the landing itself, and that under its label: both are above the snapshot CSN
    of the landing, and the manifest has forgotten none that is.
    """
    floor = _remembers_from(source, "outcome_floor", "label_floor")
    state = _columns(db, "parts").index("state")
    found: list[_Landed] = []
    for mark in db.execute("SELECT * FROM prepared").fetchall():
        tid = mark[0]
        sql = "SELECT * FROM parts WHERE creation_tid = ? AND kind = 'landed' AND creation_csn IS NULL"
        parts = db.execute(sql, (tid,)).fetchall()
        known = source.execute(
            "SELECT 1 FROM outcomes WHERE tid = ? OR label = ?", (tid, landing_label(tid))
        ).fetchone()
        whole = all(part[state] == "held" for part in parts)
        if parts and whole and not known and Tid.parse(tid).snapshot >= floor:
            found.append(_Landed(parts, mark))
    return found


def _keep_landed(db: sqlite3.Connection, landed: Sequence[_Landed]) -> None:
    marks = ", ".join("?" * len(_columns(db, "parts")))
    for one in landed:
        db.executemany(f"INSERT OR REPLACE INTO parts VALUES ({marks})", one.parts)  # noqa: S608
        db.execute("INSERT OR IGNORE INTO prepared VALUES (?, ?, ?)", one.prepared)


def _keep_bytes(db: sqlite3.Connection, found: Collection[FoundPart]) -> None:
    db.execute(
        """
        UPDATE parts SET state = 'held', file = kept.file, offset = kept.offset, blocks = kept.blocks
        FROM temp.kept
        WHERE kept.part = parts.part AND kept.length = parts.length AND kept.checksum = parts.checksum
        """
    )
    for one in found:
        at = one.location
        sql = """
            UPDATE parts SET state = 'held', file = ?, offset = 0, blocks = ?
            WHERE part = ? AND state <> 'held'
        """
        if db.execute(sql, (at.file, at.blocks, one.part)).rowcount:
            db.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (at.file, at.length))


def _set_undecided_aside(db: sqlite3.Connection, source: sqlite3.Connection) -> None:
    """Copy the parts here that the log may add behind the manifest, as those of undecided transactions.

    A commit counts a copy as soon as it is confirmed. So this disk may be the last one with the bytes of a
    record that the sender has not applied. What was applied here behind the manifest is in the log still,
    since the manifest is not below the tail. What was undecided here is in the log, or aborts, unless the
    manifest has its commit, or may have forgotten it. What landed is kept apart: its holders bring it.
    """
    db.execute("DROP TABLE IF EXISTS temp.undecided")
    sql = """
        CREATE TEMP TABLE undecided AS
        SELECT * FROM parts WHERE state = 'held' AND file IS NOT NULL AND kind IN ('part', 'manifest')
            AND (creation_csn IS NULL OR creation_csn > ?)
    """
    db.execute(sql, (_meta(source, "snapshot_csn"),))
    floor = _remembers_from(source, "outcome_floor")
    tids = db.execute(
        "SELECT DISTINCT creation_tid FROM temp.undecided WHERE creation_csn IS NULL"
    ).fetchall()
    forgotten = [(tid,) for (tid,) in tids if Tid.parse(tid).snapshot < floor]
    db.executemany("DELETE FROM temp.undecided WHERE creation_tid = ? AND creation_csn IS NULL", forgotten)
    db.execute("UPDATE temp.undecided SET creation_csn = NULL, removal_tid = NULL, removal_csn = NULL")


def _keep_undecided(db: sqlite3.Connection) -> None:
    """Put back what was set aside, but for parts and transactions that the manifest knows."""
    db.execute(
        """
        INSERT OR IGNORE INTO parts SELECT * FROM temp.undecided
        WHERE creation_tid NOT IN (SELECT tid FROM outcomes)
        """
    )
    db.execute("DROP TABLE temp.undecided")


def _remembers_from(db: sqlite3.Connection, *floors: str) -> Csn:
    """Return from which CSN on a catalog knows all commits, as these rows of ``meta`` say."""
    marks = ", ".join("?" * len(floors))
    row = db.execute(f"SELECT max(value) FROM meta WHERE key IN ({marks})", floors).fetchone()  # noqa: S608
    return Csn(row[0] or CSN_NONE)


def _tables(db: sqlite3.Connection) -> list[str]:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    return [name for (name,) in db.execute(sql)]


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def _meta(db: sqlite3.Connection, key: str) -> int:
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if row is None:
        raise CorruptError(f"the manifest of the clone lacks {key!r}; another replica may send a whole one")
    return int(row[0])


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a manifest for reading.

    Raises:
        CorruptError: SQLite cannot read it.
    """
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as db:
            yield db
    except TidelockError:
        raise
    except sqlite3.Error as error:
        raise CorruptError(
            f"the manifest of the clone cannot be read ({error}); it is asked for again"
        ) from error
