"""Files that an import may link: what is not surely the client's own file in the folder is sent instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from tidelock.replica_agent.uploads.local_files import LocalFile, linkable


def local(path: Path) -> LocalFile:
    """Return a file as a client sees it."""
    found = path.stat()
    return LocalFile(str(path), found.st_size, found.st_mtime_ns, found.st_ino)


@dataclass
class Place:
    """An import folder with a file, and a file beside it."""

    folder: Path
    inside: Path
    outside: Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The folders."""
    folder = tmp_path / "in"
    folder.mkdir()
    found = Place(folder, folder / "a.parquet", tmp_path / "b.parquet")
    found.inside.write_bytes(b"PAR1")
    found.outside.write_bytes(b"PAR1")
    return found


def test_a_file_of_the_folder_is_linked(place: Place) -> None:
    """Also by another name that leads to it, and where the folder has one."""
    assert linkable(str(place.folder), local(place.inside)) == place.inside
    other = place.folder.parent / "other"
    other.symlink_to(place.folder)
    assert linkable(str(other), local(place.inside)) == place.inside
    (place.folder / "name").symlink_to(place.inside)
    assert linkable(str(place.folder), local(place.folder / "name")) == place.inside


def _named(path: Callable[[Place], Path]) -> Callable[[Place], LocalFile]:
    return lambda place: local(path(place))


def _link_outside(place: Place) -> LocalFile:
    (place.folder / "name").symlink_to(place.outside)
    return local(place.folder / "name")


def _pipe(place: Place) -> LocalFile:
    os.mkfifo(place.folder / "pipe")
    return local(place.folder / "pipe")


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(_named(lambda place: place.outside), id="outside"),
        pytest.param(_named(lambda place: place.folder / ".." / "b.parquet"), id="up and outside"),
        pytest.param(_link_outside, id="a link to outside"),
        pytest.param(lambda place: replace(local(place.inside), path="a.parquet"), id="a relative path"),
        pytest.param(lambda place: replace(local(place.inside), inode=1), id="another inode"),
        pytest.param(lambda place: replace(local(place.inside), length=5), id="another length"),
        pytest.param(lambda place: replace(local(place.inside), mtime_ns=1), id="another time"),
        pytest.param(lambda place: replace(local(place.inside), path=f"{place.folder}/x"), id="no such file"),
        pytest.param(_named(lambda place: place.folder), id="the folder itself"),
        pytest.param(_pipe, id="a pipe"),
    ],
)
def test_all_else_is_sent(place: Place, file: Callable[[Place], LocalFile]) -> None:
    """Each for its own reason; without a folder everything is sent."""
    assert linkable(str(place.folder), file(place)) is None
    assert linkable("", local(place.inside)) is None
