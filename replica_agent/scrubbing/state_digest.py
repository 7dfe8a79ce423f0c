"""The digest of what a replica shows at a CSN: of each table its version, and its visible parts (I10).

What a row says of a part is the same on every replica but for its place on the disk. So are the digests. That
of a table is the sum of those of its rows, so that a catalog of millions of rows is read without sorting it.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import xxhash

from tidelock.csnlog.core.ids import Csn, ReplicaId, TableId
from tidelock.csnlog.core.visibility import VISIBLE_SQL, visible_args
from tidelock.errors import SnapshotTooOldError, UnavailableError
from tidelock.wire.peers import StateDigest

#: The way in which rows are counted; digests of different ways are not compared. Texts are read as bytes,
#: since a bit that has flipped may have made them no text.
FORM: Final = 2
_ROWS: Final = f"""
    SELECT CAST(table_name AS BLOB), CAST(json_array(
        part, path, rows, length, checksum, creation_csn, creation_tid, creation_change, columns_csn
    ) AS BLOB) FROM parts WHERE kind = 'part' AND {VISIBLE_SQL}
"""  # noqa: S608
#: A commit may define a table several times, and replicas forget at any time what it has superseded.
_VERSIONS: Final = (
    "SELECT CAST(id AS BLOB), CAST(json_array(max(version), from_csn) AS BLOB) "
    "FROM tables WHERE from_csn <= :s GROUP BY id"
)
#: The sum is that of numbers of 128 bits.
_MODULUS: Final = 1 << 128


def state_digest(data_dir: Path, replica: ReplicaId, csn: Csn) -> StateDigest:
    """Compute the digest of one state of the catalog. It reads all visible rows, and blocks.

    Raises:
        SnapshotTooOldError: The CSN is below the horizon: rows of it may be missing.
        UnavailableError: It is not applied here yet.
    """
    uri = f"file:{data_dir / 'catalog.db'}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.execute("BEGIN")  # horizon and rows are of one state
        horizon, reached = (
            db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]
            for key in ("horizon", "snapshot_csn")
        )
        if csn < horizon:
            raise SnapshotTooOldError(
                f"CSN {csn} is below the horizon {horizon}: compare at a newer one", csn=csn, min_csn=horizon
            )
        if csn > reached:
            raise UnavailableError(f"CSN {csn} is not applied here yet, but {reached}; ask again")
        record = db.execute("SELECT czxid FROM csns WHERE csn = ?", (csn,)).fetchone()
        sums: dict[bytes, int] = {}
        for sql in (_VERSIONS, _ROWS):
            for name, row in db.execute(sql, visible_args(csn)):
                sums[name] = sums.get(name, 0) + xxhash.xxh3_128_intdigest(row)
    tables = {
        TableId(name.decode(errors="backslashreplace")): f"{total % _MODULUS:032x}"
        for name, total in sums.items()
    }
    return StateDigest(replica, csn, FORM, (record and record[0]) or 0, tables)
