"""Part files: durable when a call returns, gone without a trace when it fails or the process dies before."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidelock.csnlog import faults
from tidelock.csnlog.core.ids import PartId
from tidelock.errors import ConfigError, CorruptError, DataDirInUseError, DiskFullError, UnavailableError
from tidelock.replication.core.digest import BLOCK_BYTES, checksum
from tidelock.replication.core.model import Location
from tidelock.replication.partfs import PartFs, Swept
from tidelock.replication.verified_range import VerifiedRange

PART = PartId("r1-3-1207")
PACK = PartId("r1-3-1208")
POINTS = [
    f"partfs.{step}"
    for step in ("write.before", "fsync.before", "fsync.after", "rename.before", "rename.after")
]

#: The program of the child of a crash test; it is killed at a fault point.
CHILD = """
import sys
from pathlib import Path
from tidelock.csnlog.core.ids import PartId
from tidelock.replication.partfs import PartFs

files = PartFs(Path(sys.argv[1]))
files.open()
if sys.argv[2] == "pack":
    paths = files.pack_paths([PartId("r1-3-1208"), PartId("r1-3-1209")])
    files.create_packs(paths)
    files.write_pack(paths[0], [b"small", b"x" * 3_000_000], lambda locations: b"the index")
else:
    sink = files.begin(PartId("r1-3-1207"))
    for _ in range(4):
        sink.write(b"x" * 700_000)
    sink.finish()
"""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[PartFs]:
    """Give the files of an empty data directory."""
    opened = PartFs(tmp_path / "data")
    opened.open()
    yield opened
    opened.close()


def stored(data_dir: Path) -> set[str]:
    """Return every file below a data directory but its lock."""
    found = (path.relative_to(data_dir).as_posix() for path in data_dir.rglob("*") if path.is_file())
    return {path for path in found if path != "lock"}


def content(length: int) -> bytes:
    """Return bytes in which no two blocks are alike."""
    return random.Random(length).randbytes(length)


def write(files: PartFs, data: bytes, part: PartId = PART) -> Location:
    """Store one part in a file of its own, in pieces."""
    sink = files.begin(part)
    for at in range(0, len(data), 100_000):
        sink.write(data[at : at + 100_000])
    return sink.finish()


def pack(files: PartFs, items: Sequence[bytes], name: PartId = PACK, index: bytes = b"") -> list[Location]:
    """Create a pack and store parts in it."""
    (path,) = files.pack_paths([name])
    files.create_packs([path])
    written = files.write_pack(path, items, lambda _: index)
    assert written.length == (files.data_dir / path).stat().st_size
    return written.locations


def test_a_pack_holds_its_parts(files: PartFs) -> None:
    """The parts of a pack follow each other in one file and are read back each for itself."""
    items = [b"first", b"", content(BLOCK_BYTES + 17), b"last"]
    locations = pack(files, items)
    assert stored(files.data_dir) == {"packs/08/r1-3-1208.pack"}
    assert [at.offset for at in locations] == [0, 5, 5, 5 + BLOCK_BYTES + 17]
    assert [files.read(at) for at in locations] == items


def test_packs_that_are_created_together_lie_in_one_folder(files: PartFs) -> None:
    """So one fsync of it makes all their names durable."""
    paths = files.pack_paths([PartId(f"r1-3-{number}") for number in (199, 200, 201)])
    assert paths == [f"packs/99/r1-3-{number}.pack" for number in (199, 200, 201)]
    files.create_packs(paths)
    assert stored(files.data_dir) == {*paths}


@pytest.mark.parametrize("index", [b"", b"x", content(100_000)], ids=len)
def test_a_pack_says_what_it_holds_when_it_is_whole(files: PartFs, index: bytes) -> None:
    """An index that is cut off anywhere, or has one other bit, is none."""
    items = [b"some", b"bytes"]
    path = pack(files, items, index=index)[0].file
    whole = (files.data_dir / path).read_bytes()
    assert files.find_pack(path) == (index, len(whole))
    for length in {0, 1, 9, len(whole) // 2, len(whole) - 1}:
        (files.data_dir / path).write_bytes(whole[:length])
        assert files.find_pack(path) is None
    for at in {9, len(whole) - 50, len(whole) - 44, len(whole) - 20, len(whole) - 1}:
        if at >= 9:  # behind the parts, whose bytes have digests of their own
            (files.data_dir / path).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert files.find_pack(path) is None, at
    (files.data_dir / path).unlink()
    assert files.find_pack(path) is None


def test_a_part_is_hashed_while_it_is_written(files: PartFs) -> None:
    """The checksum of a streamed part is that of its bytes, and its file bears its name."""
    data = content(3 * BLOCK_BYTES + 5)
    sink = files.begin(PART)
    assert stored(files.data_dir) == {"tmp/r1-3-1207.parquet.1"}
    for at in range(0, len(data), 70_001):
        sink.write(data[at : at + 70_001])
    assert (sink.length, sink.checksum, sink.closed) == (len(data), checksum(data), False)
    location = sink.finish()
    assert sink.closed
    assert stored(files.data_dir) == {location.file} == {"parts/07/r1-3-1207.parquet"}
    assert files.read(location) == data


def test_a_manifest_is_no_parquet_file(files: PartFs) -> None:
    """The file of a large manifest has another ending, so that no tool takes it for Parquet."""
    assert files.part_path(PART, "manifest") == "parts/07/r1-3-1207.manifest"
    assert files.begin(PART, "manifest").finish().file == "parts/07/r1-3-1207.manifest"


@pytest.mark.parametrize("name", ["../../etc/passwd", "r1-3", "r1-3-4/..", ""])
def test_only_ids_become_names(files: PartFs, name: str) -> None:
    """A text that is no id never becomes part of a path."""
    with pytest.raises(ValueError, match="is not a part id"):
        files.part_path(PartId(name))
    with pytest.raises(ValueError, match="is not a part id"):
        files.pack_paths([PartId(name)])


def test_the_order_of_fsync_and_rename(files: PartFs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is fsynced under its temporary name, then renamed, then the folder is fsynced."""
    steps: list[str] = []
    fsync, rename = vars(os)["fsync"], Path.rename

    def noted_fsync(fd: int) -> None:
        steps.append("fsync " + os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), files.data_dir))
        fsync(fd)

    def noted_rename(source: Path, target: Path) -> Path:
        steps.append(f"rename {source.parent.name} {target.parent.name}")
        return rename(source, target)

    monkeypatch.setattr("os.fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    write(files, b"data")
    assert steps == ["fsync tmp/r1-3-1207.parquet.1", "rename tmp 07", "fsync parts/07"]


def test_one_agent_per_data_directory(files: PartFs) -> None:
    """A second agent on the same directory is refused until the first has ended."""
    second = PartFs(files.data_dir)
    with pytest.raises(DataDirInUseError, match="another agent"):
        second.open()
    write(files, b"data")
    files.close()
    second.open()
    second.close()


def test_the_lock_of_an_agent_that_is_ending_is_waited_for(files: PartFs) -> None:
    """A process that was killed holds it until its last thread has ended."""
    second = PartFs(files.data_dir)
    ending = threading.Timer(0.3, files.close)
    ending.start()
    second.open()
    ending.join()
    second.close()


def test_a_data_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A path below a file is refused with the setting's name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="data_dir"):
        PartFs(tmp_path / "file" / "data").open()


@pytest.mark.scenario("S54", "S55")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(("kind", "expected"), [("enospc", DiskFullError), ("eio", UnavailableError)])
def test_a_failing_disk_leaves_nothing(
    files: PartFs, point: str, kind: str, expected: type[Exception]
) -> None:
    """After an error at any step the file is deleted, and the step is not tried again on it (S54, S55)."""
    kept = pack(files, [b"kept"], PartId("r1-3-1"))[0]
    with faults.armed(point, kind):
        with pytest.raises(expected):
            write(files, b"data")
        assert faults.fired(point) == 1
    assert stored(files.data_dir) == {kept.file}
    assert files.read(write(files, b"data")) == b"data"


@pytest.mark.parametrize("point", [point for point in POINTS if "rename" not in point])
@pytest.mark.parametrize(("kind", "expected"), [("enospc", DiskFullError), ("eio", UnavailableError)])
def test_a_pack_that_a_disk_refuses_is_refused(
    files: PartFs, point: str, kind: str, expected: type[Exception]
) -> None:
    """Its writer deletes it; created again it takes other parts."""
    with faults.armed(point, kind), pytest.raises(expected):
        pack(files, [b"data"])
    (left,) = stored(files.data_dir)
    files.delete([left])
    files.empty_trash()
    assert stored(files.data_dir) == set()
    assert files.read(pack(files, [b"others"])[0]) == b"others"


def test_a_failed_fsync_is_final(files: PartFs) -> None:
    """The file whose fsync failed takes nothing more, and no second fsync is tried on it."""
    sink = files.begin(PART)
    sink.write(b"data")
    with faults.armed("partfs.fsync.before", "once"), pytest.raises(faults.Injected):
        sink.finish()
    for again in (sink.finish, lambda: sink.write(b"more")):
        with pytest.raises(UnavailableError, match="takes no more"):
            again()
    assert stored(files.data_dir) == set()


def test_a_failing_folder_fsync_leaves_nothing(files: PartFs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that may not be durable counts as not done: the file is discarded under its final name."""
    fsync, seen = vars(os)["fsync"], []

    def second_fails(fd: int) -> None:
        seen.append(fd)
        if len(seen) == 2:
            raise OSError(errno.EIO, "no")
        fsync(fd)

    monkeypatch.setattr("os.fsync", second_fails)
    with pytest.raises(UnavailableError):
        write(files, b"data")
    assert stored(files.data_dir) == set()


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """Make `folder` a file system of 1 MiB; without the right to mount, let no file grow beyond 1 MiB."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() == 0 and mount and umount:
        command = [mount, "-t", "tmpfs", "-o", "size=1m", "tidelock-test", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            try:
                yield
            finally:
                subprocess.run([umount, str(folder)], check=True)
            return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_takes_the_next_small_part(tmp_path: Path) -> None:
    """A part that does not fit is refused and its space given back; what fits is stored (S55)."""
    with full_disk(tmp_path):
        files = PartFs(tmp_path / "data")
        files.open()
        with pytest.raises(DiskFullError, match="free space"):
            write(files, content(3 << 20))
        with pytest.raises(DiskFullError):
            pack(files, [content(2 << 20)])
        files.delete(files.pack_paths([PACK]))
        files.empty_trash()
        assert stored(files.data_dir) == set()
        assert files.read(write(files, b"data")) == b"data"
        files.close()


@pytest.mark.scenario("S53", "S57")
@pytest.mark.parametrize(
    ("what", "point"),
    [
        (what, point)
        for what in ("pack", "part")
        for point in POINTS
        if what == "part" or "rename" not in point  # a pack keeps the name that it was created with
    ],
)
def test_a_crash_leaves_what_the_sweep_finds(tmp_path: Path, point: str, what: str) -> None:
    """Killed at any step, a restart makes the data directory what it was before (S53)."""
    files = PartFs(tmp_path / "data")
    files.open()
    kept = write(files, b"kept", PartId("r1-2-7"))
    files.close()
    journal = tmp_path / "journal"
    environment = os.environ | {faults.ENV_FAULTS: f"{point}=crash", faults.ENV_JOURNAL: str(journal)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(files.data_dir), what],
        env=environment,
        check=False,
        capture_output=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert journal.read_text(encoding="utf-8").startswith(f"{point} crash")
    packs = files.pack_paths([PACK, PartId("r1-3-1209")])
    undone = packs if what == "pack" else [files.part_path(PART)]
    left = stored(files.data_dir) - {kept.file}
    durable = what == "pack" or point == "partfs.rename.after"
    assert left == ({*undone} if durable else {next(iter(left))})
    files.open()
    swept = files.sweep({kept.file}, undone)
    files.close()
    assert swept.removed == (tuple(undone) if durable else ())
    assert swept.missing == ()
    assert stored(files.data_dir) == {kept.file}
    assert files.read(kept) == b"kept"


def test_a_sweep_keeps_what_is_known_and_reports_what_is_missing(files: PartFs) -> None:
    """Undone and temporary files go, others stay; files that are missing or unknown are named."""
    known, undone, unknown = (write(files, b"x", PartId(name)) for name in ("r1-3-7", "r2-1-5", "r2-1-6"))
    (files.data_dir / "tmp" / "r1-3-9.parquet.4").write_text("")
    foreign = files.data_dir / "parts" / "07" / "notes.txt"
    foreign.write_text("mine")
    (files.data_dir / "trash" / "old").write_text("")
    gone = "packs/01/r1-1-1.pack"
    swept = files.sweep(
        {known.file, gone}, [undone.file, known.file, "parts/07/notes.txt", "parts/00/r1-1-100"]
    )
    assert swept == Swept(removed=(undone.file,), missing=(gone,), unknown=(unknown.file,))
    assert stored(files.data_dir) == {known.file, unknown.file, "parts/07/notes.txt"}
    assert files.read(write(files, b"again", PartId("r2-1-5"))) == b"again"


def test_deleting_goes_through_the_trash(files: PartFs) -> None:
    """A deleted file leaves its folder at once, its space comes back later; twice is fine."""
    location = write(files, b"data")
    files.delete([location.file, "parts/00/r1-1-100.parquet"])
    assert stored(files.data_dir) == {"trash/r1-3-1207.parquet"}
    files.delete([location.file])
    assert files.empty_trash() == 1
    assert stored(files.data_dir) == set()
    with pytest.raises(CorruptError, match="fetch"):
        files.read(location)


def test_a_sweep_deletes_a_file_that_a_power_cut_has_left_in_the_trash_too(files: PartFs) -> None:
    """Both names are of one file: to rename one to the other does nothing, by POSIX."""
    undone = write(files, b"data").file
    (files.data_dir / "trash" / Path(undone).name).hardlink_to(files.data_dir / undone)
    assert files.sweep(set(), [undone]).removed == (undone,)
    assert stored(files.data_dir) == set()


@pytest.mark.parametrize("again", ["delete", "sweep"])
def test_a_deletion_that_failed_is_made_durable_by_the_next(
    files: PartFs, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """The file has left its folder, but not for good: a power cut would bring it back."""
    location = write(files, b"data")
    flushed: list[Path] = []

    def flush(folder: Path) -> None:
        flushed.append(folder)
        if len(flushed) == 1:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("tidelock.replication.partfs._fsync_folder", flush)
    with pytest.raises(UnavailableError, match="deleting"):
        files.delete([location.file])
    if again == "delete":
        files.delete([location.file])
    else:
        files.sweep((), [location.file])
    assert flushed == [(files.data_dir / location.file).parent] * 2


def test_a_scratch_file_leaves_nothing_when_its_task_is_cancelled(files: PartFs) -> None:
    """The thread that opens it, or writes to it, runs on, and may even begin after the file was removed."""
    folder = files.data_dir / "tmp"
    scratch = files.scratch()
    assert not [*folder.iterdir()]
    scratch.write(b"one")
    scratch.write(b" two")
    assert [path.read_bytes() for path in folder.iterdir()] == [b"one two"]
    for one in (scratch, files.scratch()):
        one.remove()
        one.write(b"late")
    assert not [*folder.iterdir()]


def test_an_abandoned_second_try_leaves_the_first(files: PartFs) -> None:
    """A part that is fetched again replaces its file when it is whole, and never before."""
    first = write(files, b"first")
    sink = files.begin(PART)
    sink.write(b"sec")
    sink.abandon()
    sink.abandon()
    assert files.read(first) == b"first"
    second = write(files, b"second")
    assert files.read(second) == b"second"
    assert stored(files.data_dir) == {second.file}


@pytest.mark.parametrize(
    "length", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 100]
)
def test_any_range_reads_as_written(files: PartFs, length: int) -> None:
    """Whatever bytes of a part are asked for, they are those that were written."""
    before, data = content(12_345), content(length)
    location = pack(files, [before, data, b"after"])[1]
    edges = sorted({0, 1, length // 2, length - 1, length, BLOCK_BYTES, BLOCK_BYTES - 1, 2 * BLOCK_BYTES})
    edges = [edge for edge in edges if 0 <= edge <= length]
    with VerifiedRange(files.data_dir, location) as opened:
        for start in edges:
            for end in (edge for edge in edges if edge >= start):
                assert opened.read(start, end - start) == data[start:end]
        for offset, count in ((-1, 1), (0, length + 1), (length + 1, 0), (0, -1)):
            with pytest.raises(ValueError, match="outside"):
                opened.read(offset, count)


def test_a_flipped_bit_is_never_read(files: PartFs) -> None:
    """A bit that flips on the disk makes reads of its block fail and harms no other block."""
    data = content(3 * BLOCK_BYTES)
    location = write(files, data)
    path = files.data_dir / location.file
    at = BLOCK_BYTES + 77
    path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    for start, count in ((0, len(data)), (at, 1), (BLOCK_BYTES, 1), (2 * BLOCK_BYTES - 1, 2)):
        with pytest.raises(CorruptError, match="fetch the part again"):
            files.read(location, start, count)
    assert files.read(location, 0, BLOCK_BYTES) == data[:BLOCK_BYTES]
    assert files.read(location, 2 * BLOCK_BYTES) == data[2 * BLOCK_BYTES :]


@pytest.mark.scenario("S42")
def test_a_cut_file_is_never_read_short(files: PartFs) -> None:
    """A file that lost its end gives an error, not fewer bytes (S42)."""
    data = content(BLOCK_BYTES + 1000)
    location = write(files, data)
    os.truncate(files.data_dir / location.file, BLOCK_BYTES + 500)
    assert files.read(location, 0, BLOCK_BYTES) == data[:BLOCK_BYTES]
    with pytest.raises(CorruptError):
        files.read(location, BLOCK_BYTES, 10)


def test_digests_of_another_length_are_refused(files: PartFs) -> None:
    """A row whose digests do not belong to its length is a contradiction, not a reason to skip the check."""
    location = write(files, content(BLOCK_BYTES + 1))
    with pytest.raises(CorruptError, match="another length"):
        files.read(Location(location.file, 0, location.length, location.blocks[:8]))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_a_process_that_is_short_of_files_condemns_no_part(
    files: PartFs, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A process that lacks resources learns nothing of the part: it is not wrong, only unreadable now."""
    location = write(files, content(10))

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UnavailableError, match="try again"):
        files.verify(location)
    monkeypatch.undo()
    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(UnavailableError, match="try again"):
        files.verify(location)


def test_a_whole_part_is_verified_in_pieces(files: PartFs) -> None:
    """Every byte is checked, also the bytes of the last block."""
    data = content(17 * BLOCK_BYTES + 5)
    location = write(files, data)
    files.verify(location)
    path = files.data_dir / location.file
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptError):
        files.verify(location)
