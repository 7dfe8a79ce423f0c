"""Small parts as one Parquet file over HTTP: real readers over a hand-made catalog, and a real cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import data_address
from tests.support.replicas.datadir import DataDir
from tests.support.replicas.readers import Answer, ReaderHost, send
from tidelock.client import Database
from tidelock.cluster import LocalCluster

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("day", pa.string())])
#: One part of each day per commit: the first commit with rows, then one after the other.
FIRST, COMMITS = 3, 70
#: A commit whose parts lack a form, and one whose part of day "b" is large.
UNFORMED, LARGE = 20, 50
#: The commit that removes a part of day "a", created before.
REMOVED_AT, REMOVED = FIRST + COMMITS, 10
LAST = REMOVED_AT


def _rows(csn: int) -> pa.Table:
    days = ["a", "b"] if csn != LARGE else ["a", *["b"] * 40_000]
    numbers = [csn * 100_000 + place for place in range(len(days))]
    # Random texts do not compress.
    texts = [random.Random(n).randbytes(30).hex() for n in numbers]
    return pa.table({"n": numbers, "text": texts, "day": days}, schema=SCHEMA)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    """A table of two partitions with many small parts, some in packs."""
    made = DataDir(tmp_path_factory.mktemp("combined") / "r1")
    made.create_table(2, "t", SCHEMA, partition_by=["day"])
    for csn in range(FIRST, FIRST + COMMITS):
        made.insert(csn, {"default.t": _rows(csn)}, pack=csn % 2 == 0, formed=csn != UNFORMED)
    parts = made.parts("default.t")
    (removed,) = (part for part in parts if (part.creation_csn, part.path) == (REMOVED, "day=a"))
    made.remove(REMOVED_AT, removed.part)
    return made


@pytest.fixture(scope="module")
def host(data: DataDir) -> Iterator[ReaderHost]:
    """Readers over the data directory."""
    with ReaderHost(data.path) as running:
        yield running


def _files(address: str, folder: str) -> dict[str, dict[str, Any]]:
    """Return the files of a folder by name, with their statuses."""
    answer = send(address, "GET", f"/webhdfs/v1{folder}?op=LISTSTATUS")
    assert answer.status == 200, answer
    found = answer.json()["FileStatuses"]["FileStatus"]
    return {status["pathSuffix"]: status for status in found if status["type"] == "FILE"}


def _combined(host: ReaderHost, csn: int, day: str = "a") -> tuple[str, int]:
    """Return the path and the length of the first combined file of a partition."""
    folder = f"/snapshots/{csn}/default/t/day={day}"
    files = _files(host.address, folder)
    name = next(name for name in files if name.startswith("combined1-"))
    return f"{folder}/{name}", files[name]["length"]


def _whole(host: ReaderHost, path: str) -> bytes:
    answer = host.get(path)
    assert answer.status == 200, answer
    return answer.body


@pytest.mark.parametrize("csn", [2, FIRST, FIRST + 1, UNFORMED, UNFORMED + 1, LARGE, LAST - 1, LAST])
@pytest.mark.few(3)
def test_all_files_together_have_the_rows_of_the_csn(host: ReaderHost, csn: int) -> None:
    """At each CSN, whatever is combined there."""
    found: list[int] = []
    for day in ("a", "b"):
        folder = f"/snapshots/{csn}/default/t/day={day}"
        if csn == 2:  # the table has no rows yet
            assert host.webhdfs("LISTSTATUS", folder).status == 404
            continue
        for name, status in _files(host.address, folder).items():
            data = _whole(host, f"{folder}/{name}")
            assert len(data) == status["length"]
            found += pq.read_table(pa.BufferReader(data))["n"].to_pylist()
    expected = [n for at in range(FIRST, min(csn + 1, FIRST + COMMITS)) for n in _rows(at)["n"].to_pylist()]
    if csn >= REMOVED_AT:
        expected.remove(REMOVED * 100_000)
    assert sorted(found) == expected


def test_few_files_stand_for_many_parts(host: ReaderHost) -> None:
    """A part without a form, or a large one, is a file of its own between two combined ones."""
    folder = f"/snapshots/{LAST - 1}/default/t"
    names = [list(_files(host.address, f"{folder}/day={day}")) for day in ("a", "b")]
    assert [sum(name.startswith("combined1-") for name in each) for each in names] == [2, 3]
    assert [sum(name.startswith("r1-") for name in each) for each in names] == [1, 2]


def test_a_status_is_what_the_folder_shows(host: ReaderHost) -> None:
    """Length and time, which are those of the last part."""
    folder = f"/snapshots/{LAST}/default/t/day=a"
    for name, listed in _files(host.address, folder).items():
        status = host.webhdfs("GETFILESTATUS", f"{folder}/{name}").json()["FileStatus"]
        assert status == listed | {"pathSuffix": ""}
    totals = host.webhdfs("GETCONTENTSUMMARY", folder).json()["ContentSummary"]
    sizes = [listed["length"] for listed in _files(host.address, folder).values()]
    assert (totals["fileCount"], totals["length"]) == (len(sizes), sum(sizes))


def test_any_range_is_the_same_as_in_the_whole_file(host: ReaderHost) -> None:
    """Within a part, over several, over the zeros, in the footer; by OPEN and by Range."""
    path, length = _combined(host, LAST - 1)
    whole = _whole(host, path)
    draw = random.Random(5)
    ends = [(0, 1), (0, length), (length - 8, length), (length - 1, length), (length // 2, length)]
    cuts = [sorted((draw.randrange(length), draw.randrange(1, length + 1))) for _ in range(60)]
    for start, end in [*ends, *((start, end) for start, end in cuts if start < end)]:
        ranged = host.get(path, Range=f"bytes={start}-{end - 1}")
        assert (ranged.status, ranged.body) == (206, whole[start:end])
        opened = host.webhdfs("OPEN", path, offset=start, length=end - start)
        assert (opened.status, opened.body) == (200, whole[start:end])
    assert host.webhdfs("OPEN", path, offset=length).body == b""
    assert host.request("HEAD", path).headers["Content-Length"] == str(length)


def test_an_answer_has_a_mark_of_its_bytes(host: ReaderHost) -> None:
    """The ETag is the same for the same parts, and another one for others."""
    (one, _), (same, _), (other, _) = (
        _combined(host, LAST - 1),
        _combined(host, LAST - 2),
        _combined(host, LAST),
    )
    marks = [host.get(path).headers["ETag"] for path in (one, same, other)]
    assert marks[0] == marks[1] != marks[2]


def test_a_name_is_valid_at_csns_that_have_its_parts(host: ReaderHost) -> None:
    """With one of them removed it is no file any more; each part still has a name of its own."""
    path, _ = _combined(host, LAST - 1)
    name = path.rpartition("/")[2]
    gone = host.webhdfs("OPEN", f"/snapshots/{LAST}/default/t/day=a/{name}")
    # Never "file not found", which some settings of readers turn into missing rows.
    assert (gone.status, gone.exception) == (403, "AccessControlException")
    assert host.get(f"/snapshots/{LAST}/default/t/day=a/{name}").status == 400
    last = name.removeprefix("combined1-").rsplit("-", 2)[0]
    assert host.get(f"/snapshots/{LAST - 1}/default/t/day=a/{last}.parquet").status == 200


def test_parts_that_do_not_belong_together_are_refused(host: ReaderHost, data: DataDir) -> None:
    """A name that no listing has: too many parts, or parts of which one has another schema."""
    rows = sorted((row for row in data.parts("default.t") if row.path == "day=a"), key=_created)
    many = f"combined1-{rows[-1].part}-65-{sum(row.length for row in rows[-65:])}.parquet"
    assert host.webhdfs("OPEN", f"/snapshots/{LAST - 1}/default/t/day=a/{many}").status == 403
    copied = data.copy(data.path.with_name("other"))
    copied.create_table(LAST + 1, "u", SCHEMA.remove(1), partition_by=["day"])
    (narrow,) = copied.insert(LAST + 2, {"default.u": _rows(1).drop(["text"]).slice(0, 1)}, formed=True)
    with copied.sql() as db:
        db.execute("UPDATE parts SET table_name = 'default.t' WHERE part = ?", (narrow.part,))
    length = rows[-1].length + narrow.length
    path = f"/snapshots/{LAST + 2}/default/t/day=a/combined1-{narrow.part}-2-{length}.parquet"
    with ReaderHost(copied.path) as other:
        refused = other.webhdfs("OPEN", path)
        assert refused.exception == "AccessControlException"
        assert "cannot be one file" in refused.json()["RemoteException"]["message"]


def test_a_damaged_part_is_never_shown_in_a_combined_file(data: DataDir) -> None:
    """Another replica has it: the reader goes on there, under the same name."""
    damaged = data.copy(data.path.with_name("damaged"))
    row = next(row for row in damaged.parts("default.t") if row.path == "day=a" and row.creation_csn == 7)
    with ReaderHost(damaged.path, reader_workers=1) as host:
        path, length = _combined(host, LAST - 1)
        whole = _whole(host, path)
        damaged.flip_bit(row, 20)
        first = host.webhdfs("OPEN", path, offset=0, length=10)
        assert (first.status, first.body) == (200, whole[:10])  # of another part
        codes = {_open(host, path, start).status for start in range(0, length, 500)}
        assert codes == {200, 403}
        assert host.event()["corrupt"] == row.part
    with ReaderHost(damaged.path) as host:
        assert _open(host, path, 0).exception == "StandbyException"


def test_a_part_that_is_whole_again_is_served(data: DataDir) -> None:
    """It was not fetched yet, or it was damaged, moved and replaced: a reader asks the catalog each time."""
    copied = data.copy(data.path.with_name("repaired"))
    row = next(row for row in copied.parts("default.t") if row.path == "day=a" and row.creation_csn == 8)
    assert row.file is not None
    with ReaderHost(copied.path, reader_workers=1) as host:
        path, length = _combined(host, LAST - 1)

        def state(**columns: object) -> None:
            with copied.sql() as db:
                for name, value in columns.items():
                    db.execute(f"UPDATE parts SET {name} = ? WHERE part = ?", (value, row.part))

        state(state="wanted")
        assert host.webhdfs("OPEN", path).exception == "StandbyException"
        state(state="held")
        whole = _whole(host, path)
        assert len(whole) == length
        copied.flip_bit(row, 20)
        place = whole.index(data.data(row)[:200])
        assert _open(host, path, place).exception == "StandbyException"
        assert host.event()["corrupt"] == row.part
        (copied.path / "parts/again.parquet").write_bytes(data.data(row))
        state(file="parts/again.parquet", offset=0)
        assert _whole(host, path) == whole
        assert host.no_more_events()


def test_many_readers_of_a_new_file_let_it_be_composed_once(data: DataDir) -> None:
    """All get the same bytes."""
    with ReaderHost(data.path, reader_workers=1) as host:
        path, _ = _combined(host, LAST - 1)
        with ThreadPoolExecutor(8) as pool:
            found = set(pool.map(lambda _: _whole(host, path), range(16)))
    assert len(found) == 1


def test_a_replica_that_lists_each_part_serves_combined_files_too(data: DataDir, host: ReaderHost) -> None:
    """It has another setting, or lacks the forms: name and bytes are the same."""
    path, _ = _combined(host, LAST - 1)
    with ReaderHost(data.path, reader_workers=1, combined_part_bytes_max=0) as other:
        names = _files(other.address, path.rpartition("/")[0])
        assert not any(name.startswith("combined1-") for name in names)
        assert _whole(other, path) == _whole(host, path)


def _open(host: ReaderHost, path: str, start: int) -> Answer:
    return host.webhdfs("OPEN", path, offset=start, length=1)


def _created(row: Any) -> tuple[int, str]:
    return row.creation_csn, row.part


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas that combine nothing in the background."""
    return module_cluster(replicas=3, settings=QUICK)


def test_every_replica_serves_the_same_file(local: LocalCluster, db: Database) -> None:
    """The home has encoded the parts, the others have received them; name and bytes are equal."""
    db.create_table("m", SCHEMA, properties={"compaction": "off"})
    csns = [db.insert("m", _rows(number), wait="all").csn for number in range(12)]
    folder = f"/snapshots/{csns[-1]}/default/m"
    addresses = [data_address(local, replica) for replica in ("r1", "r2", "r3")]
    (name,), *others = ([name for name in _files(address, folder) if "-" in name] for address in addresses)
    assert name.startswith("combined1-")
    assert others == [[name], [name]]  # the form has come with the push
    ((status, data),) = {
        (answer.status, answer.body)
        for answer in (send(address, "GET", f"{folder}/{name}") for address in addresses)
    }
    assert status == 200
    assert pq.read_table(pa.BufferReader(data)).num_rows == 24
