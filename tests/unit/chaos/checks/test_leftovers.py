"""The check of leftovers: a replica that keeps what no commit needs fails it, one that is slow does not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos.checks.leftovers import Leftovers
from chaos.watching import waiting
from chaos.world import World
from tests.unit.chaos.hurried import Hurried
from tests.unit.chaos.stand_in import idle_world


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Hurried:
    """Waits end at once."""
    clock = Hurried()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def world(tmp_path: Path, hurried: Hurried) -> Iterator[World]:
    """Three replicas; each has two parts, with a row and a file for either."""
    with idle_world(tmp_path) as made:
        for replica in made.cluster.replicas:
            data_dir = made.cluster.node(replica).data_dir
            with closing(sqlite3.connect(data_dir / "catalog.db")) as db, db:
                for path in (path for top in ("parts", "packs") for path in (data_dir / top).rglob("*")):
                    if path.is_file():
                        name = str(path.relative_to(data_dir))
                        db.execute(
                            "INSERT INTO files (path, bytes) VALUES (?, ?)", (name, path.stat().st_size)
                        )
        yield made


def stray(world: World) -> Path:
    """Put a file that no row names onto the disk of r2."""
    file = world.cluster.node("r2").data_dir / "parts" / "stray"
    file.write_bytes(b"left")
    return file


def change(world: World, sql: str) -> None:
    """Change the catalog of r2."""
    with closing(sqlite3.connect(world.cluster.node("r2").data_dir / "catalog.db")) as db, db:
        db.execute(sql)


def found(world: World) -> list[str]:
    """Return what the check tells, without its claim, which is always the same."""
    told = Leftovers().judge(world)
    assert {one.claim for one in told} <= {"I13 NOLEAK"}
    return [one.story for one in told]


def test_replicas_that_hold_what_commits_need_are_clean(world: World) -> None:
    """Each part has its file and its row, and nothing besides is there."""
    assert found(world) == []


def test_a_file_that_stays_is_told_with_its_replica(world: World) -> None:
    """The wait for the clearing is bounded."""
    stray(world)
    assert found(world) == ["r2: file parts/stray that no row names"]


def test_a_file_that_is_cleared_away_late_is_borne(
    world: World, hurried: Hurried, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease may have to run out first."""
    file = stray(world)
    monkeypatch.setattr(hurried, "sleep", lambda _: file.unlink())
    assert found(world) == []


@pytest.mark.parametrize(
    ("sql", "story"),
    [
        ("UPDATE parts SET creation_csn = NULL WHERE part = 'r1-1-1'", "r2: part r1-1-1 of tid is undecided"),
        (
            "UPDATE parts SET removal_tid = '5-r1-1-1' WHERE part = 'r1-1-1'",
            "r2: part r1-1-1 is marked as removed by 5-r1-1-1",
        ),
        (
            "DELETE FROM parts WHERE part = 'r1-1-1'",
            "r2: file parts/00/r1-1-1.parquet of which no part is needed",
        ),
    ],
)
def test_a_row_that_stays_is_told_with_its_replica(world: World, sql: str, story: str) -> None:
    """Undecided parts, marks of removals that did not commit, and rows of files without parts."""
    change(world, sql)
    assert story in found(world)


@pytest.mark.parametrize(
    ("longer", "sql", "stories"),
    [
        (-150, None, ["r2: file packs/00/p has {cut} bytes, not {whole}"]),
        (-150, "UPDATE parts SET offset = 0 WHERE part = 'r1-1-2'", []),
        (
            +150,
            "UPDATE parts SET offset = 0 WHERE part = 'r1-1-2'",
            ["r2: file packs/00/p has {cut} bytes, not {whole}"],
        ),
    ],
    ids=["its end is needed", "its end lies elsewhere now", "it is too long"],
)
def test_a_pack_of_another_length_is_told_unless_its_end_is_not_needed(
    world: World, longer: int, sql: str | None, stories: list[str]
) -> None:
    """A pack that was cut keeps its row; the parts of its end have been fetched into other files."""
    pack = world.cluster.node("r2").data_dir / "packs" / "00" / "p"
    whole = pack.stat().st_size
    with pack.open("r+b") as file:
        file.truncate(whole + longer)
    if sql is not None:
        change(world, sql)
    assert found(world) == [story.format(cut=whole + longer, whole=whole) for story in stories]
