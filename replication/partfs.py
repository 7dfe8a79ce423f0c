"""Crash-safe part files below the data directory: the one module that calls fsync and rename.

A file is written under a temporary name in ``tmp/``, fsynced, renamed to its final name, and its directory
is fsynced. It is durable when the call that finishes it returns, and not before. After a failed fsync the
kernel may have marked the lost pages clean, so the failure is final for that file: the fsync is never tried
again, the file is discarded. Packs are created empty, many with one fsync of their directory, and filled
later, with one fsync each; a pack ends with an index of what it holds. Deleting is a rename into ``trash/``,
durable before the space is released.

The caller notes the final name as an undo row before the first byte (rule stage). So a crash at any point
leaves files that :meth:`PartFs.sweep` recognises, never a row without its file. All functions block and may
be called from any thread.

Layout (docs/protocol.md#catalog): ``parts/<2 digits>/<part>.parquet`` (``.manifest`` for a manifest),
``packs/<2 digits>/<pack>.pack``, ``tmp/``, ``trash/``, ``lock``; the digits are the last ones of the counter,
and of packs that are created together those of the first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId, parse_part_id
from tidelock.errors import (
    ConfigError,
    DataDirInUseError,
    TidelockError,
    UnavailableError,
)
from tidelock.replication.core.digest import (
    BLOCK_BYTES,
    Bytes,
    RangeDigest,
    block_digests,
    checksum,
)
from tidelock.replication.core.model import Location, PartKind
from tidelock.replication.core.room import DiskUse
from tidelock.replication.disk_room import DiskRoom
from tidelock.replication.verified_range import VerifiedRange

WRITE = faults.step("partfs.write")
FSYNC = faults.step("partfs.fsync")
RENAME = faults.step("partfs.rename")

#: Bytes that a sink collects before it writes: Parquet writers make many small writes.
BUFFER_BYTES = 1 << 20

#: The end of a pack: the length of the index before it, that index's checksum, and a mark.
_PACK_END: Final = struct.Struct(">I32s8s")
_PACK_MARK: Final = b"tidepack"

_FOLDERS = [f"{number:02d}" for number in range(100)]
#: How long a start waits for the lock of its data directory (seconds).
LOCK_WAIT_S: Final = 3.0
_LOCK_POLL_S: Final = 0.05
_SUFFIX: Final[dict[PartKind, str]] = {
    "part": ".parquet",
    "landed": ".parquet",
    "manifest": ".manifest",
}
#: The only files that a sweep considers.
_OURS = re.compile(
    r"(?:parts/\d\d/[a-z][a-z0-9_]{0,31}-\d+-\d+\.(?:parquet|manifest)|packs/\d\d/[a-z][a-z0-9_]{0,31}-\d+-\d+\.pack)"
)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Bytes that one read of a verification gets.
_VERIFY_BYTES = 16 * BLOCK_BYTES


class WrittenPack(NamedTuple):
    """A pack that is durable: where its parts lie, and the length of the file."""

    locations: list[Location]
    length: int


class FoundPack(NamedTuple):
    """A pack of which the end is there: what it says of itself, and the length of the file."""

    about: bytes
    length: int


class Swept(msgspec.Struct, frozen=True):
    """The result of a sweep.

    Attributes:
        removed: Undone files that were deleted, as paths below the data directory.
        missing: Files that the catalog names and that do not exist; no part of them may be claimed (I9).
        unknown: Files that neither the catalog nor an undo row names. They stay: a catalog that was restored
            from a backup or lost must not cost the bytes as well.
    """

    removed: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]


class PartFs:
    """The files of one data directory.

    Args:
        data_dir: The agent's data directory; nothing is touched before :meth:`open`.
        room: The free space there, with the marks below which it is kept; by default there are none.
    """

    def __init__(self, data_dir: Path, room: DiskRoom | None = None) -> None:
        self.data_dir = data_dir
        self.room: Final = room or DiskRoom(data_dir)
        self._lock_fd = -1
        self._temporary = itertools.count(1)

    def open(self) -> None:
        """Lock the directory for this process and make its folders.

        Waits up to `LOCK_WAIT_S` for the lock: the threads of a process that was killed a moment ago may
        still be ending, and it holds the lock until the last one has.

        Raises:
            DataDirInUseError: Another agent holds it.
            ConfigError: It cannot be created or written.
        """
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o644)
            _lock(self._lock_fd)
            # All at once, with three fsyncs in total: no later write has to consider a new parent directory.
            for top in ("parts", "packs"):
                for name in _FOLDERS:
                    (self.data_dir / top / name).mkdir(parents=True, exist_ok=True)
                _fsync_folder(self.data_dir / top)
            for name in ("tmp", "trash"):
                (self.data_dir / name).mkdir(exist_ok=True)
            _fsync_folder(self.data_dir)
            _fsync_folder(self.data_dir.parent)
        except BlockingIOError:
            self.close()
            raise DataDirInUseError(
                f"another agent runs on {self.data_dir}; stop it first, or choose another data_dir"
            ) from None
        except OSError as error:
            self.close()
            raise ConfigError(f"data_dir {self.data_dir} cannot be used: {error}") from error

    def close(self) -> None:
        """Release the directory."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def part_path(self, part: PartId, kind: PartKind = "part") -> str:
        """Return the path of a part's own file below the data directory; ValueError if it is no part id."""
        return f"parts/{parse_part_id(part)[2] % 100:02d}/{part}{_SUFFIX[kind]}"

    def pack_paths(self, packs: Sequence[PartId]) -> list[str]:
        """Return the paths of packs, all in one folder; ValueError if one is no id."""
        numbers = [parse_part_id(pack)[2] for pack in packs]
        return [f"packs/{numbers[0] % 100:02d}/{pack}.pack" for pack in packs]

    def create_packs(self, paths: Sequence[str]) -> None:
        """Create empty packs in one folder; return when their names are durable (one fsync for all).

        Raises:
            DiskFullError, UnavailableError: Some of them may be there.
        """
        try:
            for path in paths:
                (self.data_dir / path).open("wb").close()
            _fsync_folder((self.data_dir / paths[0]).parent)
        except OSError as error:
            raise _failure(error, "creating packs", self.room) from error

    def write_pack(
        self, path: str, items: Sequence[Bytes], index: Callable[[Sequence[Location]], bytes]
    ) -> WrittenPack:
        """Store small parts one after the other in an empty pack; return when it is durable (one fsync).

        Args:
            path: Of :meth:`create_packs`.
            items: The bytes of the parts.
            index: Is given where the parts lie, and returns the index that :meth:`find_pack` is to return.

        Raises:
            DiskFullError, UnavailableError: The pack must not be used any more.
        """
        locations, offset = [], 0
        for item in items:
            locations.append(Location(path, offset, len(item), block_digests(item)))
            offset += len(item)
        about = index(locations)
        data = b"".join((*items, about, _PACK_END.pack(len(about), checksum(about).encode(), _PACK_MARK)))
        self.room.admit(DiskUse.COMMITTED, len(data))
        try:
            with (self.data_dir / path).open("r+b", buffering=0) as file:
                WRITE.before_blocking()
                _write_all(file, data)
                WRITE.after_blocking()
                FSYNC.before_blocking()
                os.fsync(file.fileno())
                FSYNC.after_blocking()
        except OSError as error:
            raise _failure(error, f"writing {path}", self.room) from error
        return WrittenPack(locations, len(data))

    def find_pack(self, path: str) -> FoundPack | None:
        """Return what a pack says of itself; None if it is not there, is empty, or was cut off.

        That the bytes of its parts are right is not checked here.

        Raises:
            UnavailableError: It cannot be read now.
        """
        try:
            data = (self.data_dir / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failure(error, f"reading {path}", self.room) from error
        if len(data) < _PACK_END.size:
            return None
        length, digest, mark = _PACK_END.unpack(data[-_PACK_END.size :])
        about = data[-_PACK_END.size - length : -_PACK_END.size]
        if mark != _PACK_MARK or checksum(about).encode() != digest:
            return None
        return FoundPack(about, len(data))

    def begin(self, part: PartId, kind: PartKind = "part", *, use: DiskUse = DiskUse.COMMITTED) -> PartSink:
        """Open a part's own file for writing; its final name is :meth:`part_path`.

        Args:
            part: The part.
            kind: Its kind.
            use: The purpose of the bytes: it decides how much room they leave.

        Raises:
            DiskFullError, UnavailableError: The file was not opened.
        """
        self.room.admit(use, 0)
        return PartSink(self.data_dir, self.part_path(part, kind), next(self._temporary), self.room, use)

    def link(self, part: PartId, source: Path) -> tuple[Location, str]:
        """Give a file of others a second name, that of a part's own file; return its place and its checksum.

        No byte is written: the file is read once, and is durable when this returns. Its owner must not change
        it in place from then on.

        Args:
            part: The part.
            source: The file, of the same file system.

        Raises:
            OSError: The file system makes no such link here.
            UnavailableError: The disk failed.
        """
        path = self.part_path(part)
        temporary = self.data_dir / "tmp" / f"{Path(path).name}.{next(self._temporary)}"
        os.link(source, temporary, follow_symlinks=False)
        digest, place = RangeDigest(), temporary
        try:
            with temporary.open("rb", buffering=0) as file:
                while data := file.read(BUFFER_BYTES):
                    digest.update(data)
                FSYNC.before_blocking()
                os.fsync(file.fileno())
                FSYNC.after_blocking()
            RENAME.before_blocking()
            place = temporary.rename(self.data_dir / path)
            RENAME.after_blocking()
            _fsync_folder(place.parent)
        except BaseException as error:
            with contextlib.suppress(OSError):
                place.unlink()
            if isinstance(error, OSError):
                raise _failure(error, f"linking {source}", self.room) from error
            raise
        return Location(path, 0, digest.length, digest.blocks()), digest.checksum()

    def scratch(self, *, use: DiskUse = DiskUse.NEW) -> ScratchFile:
        """Return a new file in ``tmp/`` for the use of a statement while it runs.

        Args:
            use: The purpose of the bytes: below its mark there is no file.

        Raises:
            DiskFullError, UnavailableError: There is none.
        """
        self.room.admit(use, 0)
        return ScratchFile(self.data_dir / "tmp" / f"scratch.{next(self._temporary)}", self.room)

    def read(self, location: Location, offset: int = 0, length: int | None = None) -> bytes:
        """Return verified bytes of a part; errors as :meth:`VerifiedRange.read`."""
        with VerifiedRange(self.data_dir, location) as part:
            return part.read(offset, location.length - offset if length is None else length)

    def verify(self, location: Location) -> None:
        """Return if all bytes of a part are the written ones; errors as :meth:`VerifiedRange.read`."""
        with VerifiedRange(self.data_dir, location) as part:
            for start in range(0, location.length, _VERIFY_BYTES):
                part.read(start, min(_VERIFY_BYTES, location.length - start))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files for good, if they exist. :meth:`empty_trash` releases the space.

        Raises:
            UnavailableError: Some files may exist again after a crash; call again.
        """
        chosen = set(paths)
        self._delete(chosen, chosen)

    def _delete(self, paths: Collection[str], gone: Iterable[str]) -> None:
        """Delete files, and make durable that ``gone`` are deleted: a former call may have failed there."""
        try:
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    self.data_dir.joinpath(path).rename(self.data_dir / "trash" / Path(path).name)
            for folder in sorted({self.data_dir.joinpath(path).parent for path in gone}):
                with contextlib.suppress(FileNotFoundError):
                    _fsync_folder(folder)
        except OSError as error:
            raise _failure(error, "deleting files", self.room) from error

    def empty_trash(self) -> int:
        """Release the space of deleted files; return their number. A file that fails stays for later."""
        count = 0
        with contextlib.suppress(OSError):
            for path in (self.data_dir / "trash").iterdir():
                with contextlib.suppress(OSError):
                    path.unlink()
                    count += 1
        return count

    def sweep(self, keep: Collection[str], undo: Iterable[str]) -> Swept:
        """Clean up after a crash, before any write: delete temporary files, trash and undone files.

        Args:
            keep: Paths that the catalog names in ``files``.
            undo: Paths of undo rows; afterwards these rows may be deleted.

        Raises:
            UnavailableError: A folder cannot be read or a file cannot be moved.
        """
        try:
            shutil.rmtree(self.data_dir / "tmp")
            (self.data_dir / "tmp").mkdir()
            found = set(self._files())
        except OSError as error:
            raise _failure(error, "looking through the data directory", self.room) from error
        known = keep if isinstance(keep, set | frozenset) else set(keep)
        undone = set(undo) - known
        removed = found & undone
        self.empty_trash()  # a power cut may have left a file there that is in its folder, too
        self._delete(removed, undone)
        self.empty_trash()
        return Swept(*(tuple(sorted(paths)) for paths in (removed, known - found, found - known - removed)))

    def present(self) -> set[str]:
        """Return the paths of all part files and packs, whether the catalog names them or not.

        Raises:
            UnavailableError: A folder cannot be read.
        """
        try:
            return set(self._files())
        except OSError as error:
            raise _failure(error, "looking through the data directory", self.room) from error

    def _files(self) -> Iterator[str]:
        for top in ("parts", "packs"):
            for folder in _FOLDERS:
                with os.scandir(self.data_dir / top / folder) as entries:
                    names = (f"{top}/{folder}/{entry.name}" for entry in entries)
                    yield from (name for name in names if _OURS.fullmatch(name))


class ScratchFile:
    """A file for this process and its children only, made by :meth:`PartFs.scratch`; never durable.

    It is there from the first write on, and not after it was removed: a task that is cancelled does not wait
    for the thread in which it writes.
    """

    def __init__(self, path: Path, room: DiskRoom) -> None:
        self.path, self._room = path, room
        self._lock = threading.Lock()
        self._file: io.FileIO | None = None
        self._removed = False

    def write(self, data: Bytes) -> None:
        """Append bytes; of a file that was removed nothing is written.

        Raises:
            DiskFullError, UnavailableError: The file cannot be used any more.
        """
        with self._lock:
            if self._removed:
                return
            try:
                if self._file is None:
                    self._file = self.path.open("xb", buffering=0)
                _write_all(self._file, data)
            except OSError as error:
                raise _failure(error, f"writing {self.path.name}", self._room) from error

    def remove(self) -> None:
        """Delete the file; the next sweep finds a file that cannot be deleted now."""
        with self._lock:
            self._removed = True
            if self._file is None:
                return
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self.path.unlink()


class PartSink:
    """A file that is being written; made by :meth:`PartFs.begin`. It is hashed while the bytes pass through.

    After an error, as after :meth:`finish` and :meth:`abandon`, it accepts nothing more. It has the methods
    that ``pyarrow.PythonFile`` needs of a file to write to. ``use`` is the purpose of the bytes that follow.
    """

    def __init__(self, data_dir: Path, path: str, number: int, room: DiskRoom, use: DiskUse) -> None:
        self.path = path
        self._room, self.use = room, use
        self._asked = 0  # bytes since the free space was looked at
        self._final = data_dir / path
        self._temporary = data_dir / "tmp" / f"{self._final.name}.{number}"
        #: The present name of the file. A file that was at the final name before is not ours to unlink.
        self._name = self._temporary
        self._digest = RangeDigest()
        self._open = True
        try:
            self._file = self._temporary.open("xb", buffering=BUFFER_BYTES)
        except OSError as error:
            raise _failure(error, f"creating {path}", room) from error

    @property
    def closed(self) -> bool:
        """Whether the file accepts no more bytes."""
        return not self._open

    @property
    def length(self) -> int:
        """Bytes written so far."""
        return self._digest.length

    @property
    def checksum(self) -> str:
        """XXH3-128 of the bytes written so far."""
        return self._digest.checksum()

    def write(self, data: Bytes) -> int:
        """Append bytes; return their number.

        Raises:
            DiskFullError, UnavailableError: The file is discarded.
        """
        with self._errors("writing"):
            self._admit(len(data))
            WRITE.before_blocking()
            self._file.write(data)
            WRITE.after_blocking()
        self._digest.update(data)
        return len(data)

    def _admit(self, count: int) -> None:
        """Look at the free space once for each :data:`BUFFER_BYTES`: writers make many small writes."""
        self._asked += count
        if self._asked >= BUFFER_BYTES:
            self._room.admit(self.use, self._asked)
            self._asked = 0

    def finish(self) -> Location:
        """Make the file durable under its final name; a file of that name is replaced.

        Raises:
            DiskFullError, UnavailableError: The file is discarded.
        """
        with self._errors("making durable"):
            self._file.flush()
            FSYNC.before_blocking()
            os.fsync(self._file.fileno())
            FSYNC.after_blocking()
            self._file.close()
            RENAME.before_blocking()
            self._name = self._temporary.rename(self._final)
            RENAME.after_blocking()
            _fsync_folder(self._final.parent)
        self._open = False
        return Location(self.path, 0, self._digest.length, self._digest.blocks())

    def abandon(self) -> None:
        """Discard the file; harmless when it is already finished or discarded."""
        if self._open:
            self._discard()

    def _discard(self) -> None:
        self._open = False
        with contextlib.suppress(OSError):  # closing flushes the buffer, which may fail once more
            self._file.close()
        with contextlib.suppress(OSError):  # the next sweep finds a file that stays
            self._name.unlink()

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        if not self._open:
            raise UnavailableError(f"{self.path} takes no more bytes: it was finished or discarded")
        try:
            yield
        except OSError as error:
            self._discard()
            raise _failure(error, f"{doing} {self.path}", self._room) from error
        except BaseException:
            self._discard()
            raise


def _write_all(file: io.FileIO, data: Bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failure(error: OSError, doing: str, room: DiskRoom) -> TidelockError:
    """Return the error for a failed change of the disk: nothing is claimed, and it may work later."""
    if error.errno in _NO_ROOM:
        return room.none_left(doing, str(error.strerror))
    return UnavailableError(f"the disk failed while {doing} ({error}); look at the replica's disk")


def _lock(fd: int) -> None:
    """Lock a file for this process; BlockingIOError if another one has it for longer than `LOCK_WAIT_S`."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_LOCK_POLL_S)
        else:
            return
