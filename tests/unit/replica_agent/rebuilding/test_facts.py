"""Catalogs that cannot be read: each is an error that says what to do, and none is a traceback."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tidelock.csnlog.core.ids import PartId
from tidelock.csnlog.core.model import LabelState
from tidelock.errors import ConfigError, CorruptError, TidelockError
from tidelock.exits import Exit
from tidelock.replica_agent.rebuilding.facts import decided, held, read_facts
from tidelock.replica_agent.rebuilding.main import main
from tidelock.replica_agent.storage.catalog import Catalog

PART = PartId("r1-1-1")
NAMED = "INSERT INTO prepared VALUES ('9-r1-4-1', 'r1', 4)"


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A data directory with the catalog of a cluster."""
    made = tmp_path / "data"
    made.mkdir()
    catalog = Catalog(made, initial={"replica": "r1", "disk": "d1"}, cache_bytes=1 << 20)
    await catalog.close()
    changed(made, "INSERT OR REPLACE INTO meta VALUES ('cluster_id', 'c')", NAMED)
    return made


def changed(folder: Path, *statements: str) -> None:
    """Change the catalog of a data directory."""
    with closing(sqlite3.connect(folder / "catalog.db", isolation_level=None)) as db:
        for sql in statements:
            db.execute(sql)


def test_a_catalog_that_is_whole_is_read(folder: Path) -> None:
    """The tests below damage a catalog that says what it has to say."""
    found = read_facts(folder)
    assert (found.replica, found.cluster_id, found.boots) == ("r1", "c", {"r1": 4})
    assert decided(folder, ["9-r1-4-1"]) == set()


def test_labels_say_whether_their_newest_commit_keeps_progress(folder: Path) -> None:
    """Else a replica that does not know that commit would tell of none."""
    sql = "INSERT INTO outcomes (tid, csn, time_ms, label, batch, progress) VALUES {}"
    rows = ["('1-r1-4-1', 2, 2, 'q', 1, 'a')", "('2-r1-4-2', 3, 3, 'q', 2, NULL)"]
    rows.append("('3-r1-4-3', 4, 4, 'once', NULL, '')")
    changed(folder, sql.format(", ".join(rows)))
    assert read_facts(folder).labels == {
        "q": LabelState("2-r1-4-2", 2), "once": LabelState("3-r1-4-3", None, progress=True),
    }  # fmt: skip


def test_visible_parts_that_are_not_here_are_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator gives one directory too few, and learns it before anything is changed."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    row = """
        INSERT INTO parts (part, table_name, path, rows, length, checksum, creation_tid, creation_csn,
                           removal_csn, kind, state)
        VALUES ('{}', 'd.t', '', 1, 1, '', '9-r1-4-1', {}, {}, 'part', '{}')
    """
    parts = [("r2-1-1", 2, "NULL"), ("r2-1-2", 2, "NULL"), ("r2-1-3", 2, "3"), ("r2-1-4", "NULL", "NULL")]
    changed(folder, *(row.format(*part, "wanted") for part in parts))
    changed(
        other, "UPDATE meta SET value = 'r2' WHERE key = 'replica'", row.format("r2-1-1", 2, "NULL", "held")
    )
    assert read_facts(folder).lacking == ("r2-1-1", "r2-1-2")
    assert held(other, read_facts(folder).lacking) == {"r2-1-1"}
    given = ["--zk", "127.0.0.1:1/t", "--copies", "1", "--from", str(folder), "--from", str(other)]
    assert main(given) == Exit.OK
    assert (
        "1 visible part(s) lie in none of these directories; the first is r2-1-2." in capsys.readouterr().out
    )
    assert main([*given[:4], "--json", *given[4:]]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["lost"] == ["r2-1-2"]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM meta WHERE key = 'format'",
        "DELETE FROM meta WHERE key = 'snapshot_csn'",
        "UPDATE meta SET value = 'many' WHERE key = 'boot'",
        "UPDATE meta SET value = NULL WHERE key = 'boot'",
        "UPDATE prepared SET tid = 'no tid'",
        "INSERT INTO tables VALUES ('d.t', 0, 2, '{', x'', x'', 'live', 'd.t')",
        "DROP TABLE meta",
        "DROP TABLE skips",
    ],
)
def test_a_damaged_catalog_is_named(folder: Path, statement: str) -> None:
    """Its replica is left out, and no value of it decides anything."""
    changed(folder, statement)
    with pytest.raises(
        CorruptError, match=r"catalog\.db cannot be read as a catalog .* leave this replica out"
    ):
        read_facts(folder)


def _no_file(folder: Path) -> Path:
    (folder / "catalog.db").unlink()
    return folder


def _no_log(folder: Path) -> Path:
    changed(folder, "PRAGMA journal_mode = WAL")
    (folder / "catalog.db-wal").mkdir()
    return folder


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_no_file, "no catalog.db"),
        (_no_log, "as the user of the agent"),
        (lambda folder: folder / ("x" * 300), "as the user of the agent"),
    ],
    ids=["no file", "no log", "a folder that cannot be looked at"],
)
def test_a_catalog_that_cannot_be_opened(
    folder: Path, spoil: Callable[[Path], Path], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """That says nothing about the data, so the advice is another one."""
    place = spoil(folder)
    with pytest.raises(ConfigError, match=words):
        read_facts(place)
    assert main(["--from", str(place), "--zk", "nowhere:1"]) == Exit.USAGE
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("read", [read_facts, lambda folder: decided(folder, ["9-r1-4-1"])])
def test_bytes_that_are_no_catalog(folder: Path, read: Callable[[Path], object]) -> None:
    """Both questions to a catalog end with an error of Tidelock."""
    (folder / "catalog.db").write_bytes(b"something else" * 1000)
    with pytest.raises(TidelockError, match="cannot be read as a catalog"):
        read(folder)
