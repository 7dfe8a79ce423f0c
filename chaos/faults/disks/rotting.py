"""Parts on the disk of a replica: which there are, whether they are whole, and how damage is found."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from chaos.faults.fault import NotPossibleError, Proof
from chaos.faults.reviving import serve_again, there
from chaos.faults.signs import Signs
from chaos.watching.seeing import LogSince
from chaos.watching.waiting import NOTICE_TIMEOUT_S, comes_true, until
from chaos.world import World
from tidelock.errors import UnavailableError
from tidelock.testing import Node
from workloads.agents import get

#: How long a replica may need to read all its parts, in seconds.
AUDIT_TIMEOUT_S: Final = 120.0
_VISIBLE: Final = (
    "SELECT part, file, offset, length, checksum FROM parts WHERE state = 'held' AND kind = 'part' "
    "AND creation_csn IS NOT NULL AND removal_tid IS NULL AND length > 0 AND file LIKE ? ORDER BY part"
)
_ONE: Final = "SELECT part, file, offset, length, checksum FROM parts WHERE state = 'held' AND part = ?"
_OF_FILE: Final = (
    "SELECT part, file, offset, length, checksum FROM parts WHERE state = 'held' AND length > 0 AND file = ?"
)
_KNOWN: Final = "SELECT count(*) FROM parts WHERE part = ?"


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes of a part on a disk.

    Attributes:
        part: Its id.
        file: The file: a pack, or one of its own.
        offset: Where it begins there.
        length: Its bytes.
        checksum: XXH3-128 of them, in hexadecimal digits.
    """

    part: str
    file: Path
    offset: int
    length: int
    checksum: str


@contextlib.contextmanager
def rotten(
    world: World,
    target: str,
    chosen: random.Random,
    *,
    folder: str,
    harm: Callable[[Place, random.Random], None],
) -> Iterator[Proof]:
    """Damage a part of a replica behind its back; afterwards wait until it has it from another replica.

    The others of its file that were damaged with it are waited for as well.

    Args:
        world: The run.
        target: The replica.
        chosen: Draws the part.
        folder: `parts` for one that has a file of its own, `packs` for one in a pack.
        harm: Damages it.

    Raises:
        NotPossibleError: The replica has no such part, or has collected it unread.
        UnavailableError: It is not whole again in time.
    """
    node = world.cluster.node(target)
    log, harmed = LogSince(node), list[Place]()

    def is_harmed() -> bool:
        if found := visible(node, folder):
            place = chosen.choice(found)
            with contextlib.suppress(FileNotFoundError):  # it was collected at this moment
                harm(place, chosen)
                harmed.append(place)
        return bool(harmed)

    if not comes_true(is_harmed, NOTICE_TIMEOUT_S):
        raise NotPossibleError(f"{target} has no part in {folder}")
    [place] = harmed
    parts = {place.part, *(beside.part for beside in _beside(node, place) if not _intact(beside))}

    def noticed() -> str | None:
        for line in log.lines("part_damaged"):
            if line["part"] in parts:
                return f"{target} has found that part {line['part']} is damaged: {line['detail']}"
        return None

    proof = Signs(noticed)
    try:
        yield proof
    finally:
        _healed(world, target, parts, log)
    if proof.seen() is None and there(world, target) and all(_forgotten(node, part) for part in parts):
        raise NotPossibleError(f"part {place.part} was collected at {target} before anybody has read it")


def visible(node: Node, folder: str) -> list[Place]:
    """Return the visible parts of a replica, of one folder; none while it has no catalog."""
    return _places(node, _VISIBLE, f"{folder}/%")


def whole(node: Node, part: str) -> bool:
    """Return whether a replica holds the right bytes of a part, or does not need it any more."""
    places = _places(node, _ONE, part)
    if not places:
        return _forgotten(node, part)
    return _intact(places[0])


def flip_bit(place: Place, chosen: random.Random) -> None:
    """Change one bit of a part."""
    with place.file.open("r+b", buffering=0) as file:
        at = place.offset + chosen.randrange(place.length)
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << chosen.randrange(8))]))


def truncate(place: Place, chosen: random.Random) -> None:
    """Cut the file of a part in the middle of the part."""
    os.truncate(place.file, place.offset + chosen.randrange(place.length))


def _healed(world: World, target: str, parts: AbstractSet[str], log: LogSince) -> None:
    """Wait until parts are whole. If one was not read meanwhile, an audit that reads everything does it."""

    def are_whole() -> bool:
        serve_again(world, target)
        if not there(world, target):
            return True
        wanting = {part for part in parts if not whole(world.cluster.node(target), part)}
        if wanting - {line["part"] for line in log.lines("part_damaged")}:
            with contextlib.suppress(UnavailableError):
                url = f"{world.cluster.url(target)}/api/v1/audit?deep=1"
                get(url, timeout_s=AUDIT_TIMEOUT_S, token=world.cluster.secret)
        return not wanting

    until(are_whole, what=f"each of {', '.join(sorted(parts))} is whole at {target}")


def _intact(place: Place) -> bool:
    """Return whether the bytes of a part are those that were written."""
    try:
        with place.file.open("rb") as file:
            file.seek(place.offset)
            return xxhash.xxh3_128_hexdigest(file.read(place.length)) == place.checksum
    except OSError:
        return False  # it was deleted at this moment


def _beside(node: Node, place: Place) -> list[Place]:
    """Return all parts in the file of a part, those of open transactions too."""
    return _places(node, _OF_FILE, place.file.relative_to(node.data_dir).as_posix())


def _forgotten(node: Node, part: str) -> bool:
    """Return whether a replica does not know a part any more; False if its catalog cannot be read."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_catalog(node)) as db:
        return not db.execute(_KNOWN, (part,)).fetchone()[0]
    return False


def _places(node: Node, sql: str, argument: str) -> list[Place]:
    try:
        with contextlib.closing(_catalog(node)) as db:
            rows = db.execute(sql, (argument,)).fetchall()
    except sqlite3.Error:
        return []
    return [Place(part, node.data_dir / file, *rest) for part, file, *rest in rows]


def _catalog(node: Node) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{node.data_dir / 'catalog.db'}?mode=ro", uri=True, timeout=10.0)
