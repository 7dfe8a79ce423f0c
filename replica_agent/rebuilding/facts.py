"""The content of one catalog, as far as a tree in ZooKeeper is made out of it. The catalog is only read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tidelock.csnlog.core.ids import Csn, PartId, ReplicaId, TableId, Tid, parse_part_id
from tidelock.csnlog.core.model import LabelState, SkipPart, SkippedRecord
from tidelock.errors import ConfigError, CorruptError
from tidelock.replica_agent.storage.catalog_reads import skipped_records
from tidelock.replica_agent.storage.catalog_schema import FORMAT

#: SQLite's results that say nothing about the content of the file.
_NOT_OPENED: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)


class UndecidedFacts(msgspec.Struct, frozen=True):
    """A transaction that a replica has sealed or received, and whose outcome it does not know.

    Attributes:
        rows: Rows of its parts that are here.
        tables: Their tables.
        landed: The rows have landed: a replica that holds them brings them, although it counts as aborted.
    """

    tid: str
    rows: int
    tables: tuple[str, ...]
    landed: bool = False


class CatalogFacts(msgspec.Struct, frozen=True):
    """The facts of one catalog.

    Attributes:
        folder: The data directory.
        disk: Id of the data directory.
        incarnation: The incarnation of the tree that it belongs to.
        boot: The last boot of the replica.
        csn: The CSN up to which everything is applied.
        time_ms: The effective time of that CSN (Unix, ms).
        horizon: The last horizon that it has read. Where the replica was about to clone, it may be larger
            than ``csn``.
        clone: Why the replica was about to replace this catalog by a clone; "" if it was not.
        zxids: ZooKeeper's number of the record at each CSN, where it is known.
        boots: The largest boot of each replica that a transaction or a part names.
        tables: The definitions of each table, by version.
        labels: The newest commit under each label.
        skips: Parts that were declared lost.
        skipped: Records that were passed over, by CSN.
        tags: The CSNs of the tags.
        parts: Visible parts.
        part_bytes: Their bytes.
        lacking: Those of them that this replica does not hold.
        outcomes: Number of outcomes that are kept.
        undecided: Transactions without an outcome.
    """

    folder: Path
    replica: ReplicaId
    disk: str
    cluster_id: str
    incarnation: str
    boot: int
    csn: Csn
    time_ms: int
    horizon: Csn
    clone: str
    zxids: Mapping[Csn, int]
    boots: Mapping[ReplicaId, int]
    tables: Mapping[TableId, Mapping[int, Mapping[str, Any]]]
    labels: Mapping[str, LabelState]
    skips: tuple[SkipPart, ...]
    skipped: Mapping[Csn, SkippedRecord]
    tags: Mapping[str, Csn]
    parts: int
    part_bytes: int
    lacking: tuple[PartId, ...]
    outcomes: int
    undecided: tuple[UndecidedFacts, ...]


def is_data_directory(folder: Path) -> bool:
    """Return whether a folder is one in which an agent may run, and not a copy of a catalog.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return (folder / "parts").is_dir()
    except OSError as error:
        raise _unreachable(folder, str(error)) from error


def read_facts(folder: Path) -> CatalogFacts:
    """Read the catalog of a data directory, in one transaction.

    Raises:
        ConfigError: There is no catalog, it cannot be opened, it belongs to no cluster, or another version
            has written it.
        CorruptError: It is damaged.
    """
    with _opened(folder) as db:
        db.execute("BEGIN")
        return _facts(folder, db)


def decided(folder: Path, tids: Iterable[str]) -> set[str]:
    """Return the transactions among these that a catalog knows as committed; errors as in `read_facts`."""
    with _opened(folder) as db:
        sql = "SELECT 1 FROM outcomes WHERE tid = ?"
        return {tid for tid in tids if db.execute(sql, (tid,)).fetchone() is not None}


def held(folder: Path, parts: Iterable[PartId]) -> set[PartId]:
    """Return the parts among these that a data directory holds; errors as in `read_facts`."""
    with _opened(folder) as db:
        sql = "SELECT 1 FROM parts WHERE part = ? AND state = 'held'"
        return {part for part in parts if db.execute(sql, (part,)).fetchone() is not None}


@contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the catalog of a data directory for reading; errors there become those of an operator."""
    path = folder / "catalog.db"
    try:
        if not path.is_file():
            raise ConfigError(f"expected the data directory of a replica, found no catalog.db in {folder}")
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as db:
            yield db
    except OSError as error:
        raise _unreachable(path, str(error)) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _NOT_OPENED:
            raise _unreachable(path, str(error)) from error
        raise _damaged(path, str(error)) from error
    except (LookupError, TypeError, ValueError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error


def _unreachable(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"expected a catalog that can be read, found that {path} cannot ({why}): run the command as the user "
        "of the agent, or on a copy of catalog.db and catalog.db-wal in a folder of your own"
    )


def _damaged(path: Path, why: str) -> CorruptError:
    return CorruptError(f"{path} cannot be read as a catalog ({why}); leave this replica out")


def _facts(folder: Path, db: sqlite3.Connection) -> CatalogFacts:
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if meta["format"] != FORMAT:
        raise ConfigError(
            f"expected catalog format {FORMAT}, found {meta['format']} in {folder}: take the version that "
            "wrote it"
        )
    if meta.get("cluster_id") is None:
        raise ConfigError(f"{folder} belongs to no cluster yet: leave this replica out")
    replica = ReplicaId(meta["replica"])
    parts, part_bytes = db.execute(
        """
        SELECT count(*), coalesce(sum(length), 0) FROM parts
        WHERE creation_csn IS NOT NULL AND removal_csn IS NULL
        """
    ).fetchone()
    return CatalogFacts(
        folder=folder,
        replica=replica,
        disk=meta["disk"],
        cluster_id=meta["cluster_id"],
        incarnation=meta.get("incarnation") or "",
        boot=int(meta["boot"]),
        csn=Csn(meta["snapshot_csn"]),
        time_ms=int(meta["time_ms"]),
        horizon=Csn(meta["horizon"]),
        clone=meta.get("clone") or "",
        zxids={Csn(csn): zxid for csn, zxid in db.execute("SELECT csn, czxid FROM csns WHERE czxid > 0")},
        boots=_boots(db, replica, int(meta["boot"])),
        tables=_tables(db),
        labels=_labels(db),
        skips=_skips(db),
        skipped=skipped_records(db),
        tags={name: Csn(csn) for name, csn in db.execute("SELECT name, csn FROM tags")},
        parts=int(parts),
        part_bytes=int(part_bytes),
        lacking=_lacking(db),
        outcomes=int(db.execute("SELECT count(*) FROM outcomes").fetchone()[0]),
        undecided=_undecided(db),
    )


def _boots(db: sqlite3.Connection, replica: ReplicaId, boot: int) -> dict[ReplicaId, int]:
    """Return the largest boot of each replica that an id names: none may be given out again."""
    found = {replica: boot}

    def note(pairs: Iterable[tuple[ReplicaId, int]]) -> None:
        for name, number in pairs:
            found[name] = max(number, found.get(name, 0))

    note(parse_part_id(part)[:2] for part in _texts(db, "SELECT part FROM parts"))
    for sql in (
        "SELECT creation_tid FROM parts",
        "SELECT removal_tid FROM parts WHERE removal_tid IS NOT NULL",
        "SELECT tid FROM outcomes",
        "SELECT tid FROM prepared",
    ):
        note((tid.home, tid.boot) for tid in map(Tid.parse, _texts(db, sql)))
    return found


def _texts(db: sqlite3.Connection, sql: str) -> Iterator[str]:
    return (text for (text,) in db.execute(sql))


def _tables(db: sqlite3.Connection) -> dict[TableId, dict[int, Any]]:
    found: dict[TableId, dict[int, Any]] = {}
    for table, version, definition in db.execute("SELECT id, version, definition FROM tables"):
        found.setdefault(TableId(table), {})[version] = json.loads(definition)
    return found


def _labels(db: sqlite3.Connection) -> dict[str, LabelState]:
    rows = db.execute(
        "SELECT label, tid, batch, progress IS NOT NULL FROM outcomes WHERE label IS NOT NULL "
        "ORDER BY csn, batch"
    )
    return {label: LabelState(tid, batch, bool(progress)) for label, tid, batch, progress in rows}


def _skips(db: sqlite3.Connection) -> tuple[SkipPart, ...]:
    rows = db.execute(
        "SELECT table_name, part, rows, csn, tid, operator, why, time_ms, without FROM skips ORDER BY part"
    )
    return tuple(
        SkipPart(
            table=TableId(table),
            part=PartId(part),
            rows=count,
            csn=Csn(csn),
            tid=tid,
            by=by,
            why=why,
            time_ms=time_ms,
            without=tuple(ReplicaId(name) for name in without.split()),
        )
        for table, part, count, csn, tid, by, why, time_ms, without in rows
    )


def _lacking(db: sqlite3.Connection) -> tuple[PartId, ...]:
    rows = db.execute(
        """
        SELECT part FROM parts
        WHERE state <> 'held' AND creation_csn IS NOT NULL AND removal_csn IS NULL
        """
    )
    return tuple(sorted(PartId(part) for (part,) in rows))


def _undecided(db: sqlite3.Connection) -> tuple[UndecidedFacts, ...]:
    rows = db.execute(
        """
        SELECT q.tid, coalesce(sum(p.rows), 0), group_concat(DISTINCT p.table_name), max(p.kind = 'landed')
        FROM prepared q LEFT JOIN parts p ON p.creation_tid = q.tid AND p.kind <> 'manifest'
        WHERE q.tid NOT IN (SELECT tid FROM outcomes) GROUP BY q.tid ORDER BY q.tid
        """
    )
    return tuple(
        UndecidedFacts(tid, int(count), tuple(sorted(filter(None, (tables or "").split(",")))), bool(landed))
        for tid, count, tables, landed in rows
    )
