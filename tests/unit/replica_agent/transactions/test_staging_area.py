"""The staging folder of a table: the requests of Hadoop's committer, and the files that are accepted."""

from __future__ import annotations

import pytest

from tests.support.spark.hadoop_committer import (
    DYNAMIC,
    JOBS,
    SUCCESS,
    TEMPORARY,
    attempt,
    begun,
    commit_job,
    merge,
    name,
    task_folder,
    write,
)
from tidelock.errors import BadRequestError, TooLargeError, UnsealedWriteError
from tidelock.replica_agent.transactions import staging_area as areas
from tidelock.replica_agent.transactions.staging_area import StagingArea
from tidelock.replica_agent.transactions.staging_paths import (
    DEPTH_MAX,
    PathKind,
    StagingPath,
    job_of_file,
    kind_of,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("_temporary", PathKind.SCAFFOLD),
        ("_temporary/0", PathKind.SCAFFOLD),
        ("_temporary/0/_temporary", PathKind.SCAFFOLD),
        ("_temporary/0/_temporary/attempt_1/k=1/f", PathKind.ATTEMPT),
        ("_temporary/0/task_1", PathKind.TASK),
        ("_temporary/0/task_1/k=1/f", PathKind.TASK),
        ("_SUCCESS", PathKind.MARKER),
        ("k=1/_SUCCESS", PathKind.RESULT),
        ("k=1/f", PathKind.RESULT),
        (f".spark-staging-{JOBS[0]}/_temporary/0/_temporary/attempt_1/f", PathKind.ATTEMPT),
        (f".spark-staging-{JOBS[0]}/_SUCCESS", PathKind.MARKER),
        (f".spark-staging-{JOBS[0]}/k=1", PathKind.RESULT),
    ],
)
def test_kinds_of_places_follow_the_committers_layout(text: str, kind: PathKind) -> None:
    """By the layout of the committer."""
    assert kind_of(tuple(text.split("/"))) is kind


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"part-00000-{JOBS[0]}-c000.snappy.parquet", True),
        (f"part-00012-{JOBS[0]}.c003.zstd.parquet", True),
        (f"part-123456-{JOBS[0]}_00004.c000.parquet", True),
        (f"part-00000-{JOBS[0]}-c000.snappy.orc", False),
        ("data.parquet", False),
        (f"part-00000-{JOBS[0]}.crc", False),
    ],
)
def test_a_job_is_the_uuid_in_its_file_names(text: str, found: bool) -> None:
    """The job is the UUID in the name of a file of Spark's Parquet writer."""
    assert job_of_file((text,)) == (JOBS[0] if found else None)


def test_an_append_enters_all_files_and_another_may_follow() -> None:
    """Two tasks, one with two partitions: three files are accepted, and a second job may follow."""
    area = begun()
    write(area, (*attempt(0), "k=1", name(JOBS[0])))
    write(area, (*attempt(0), "k=2", name(JOBS[0], 0, 1)))
    write(area, (*attempt(1), "k=1", name(JOBS[0], 1)))
    for task in (0, 1):
        assert area.rename(attempt(task), task_folder(task))
    assert area.below(task_folder(0)) == (1, 2)
    assert "has not ended" in str(area.unsealed())
    with pytest.raises(UnsealedWriteError):
        area.closing()
    commit_job(area, 2)
    assert "were not sealed" in str(area.unsealed())
    assert area.mark(SUCCESS)
    assert [item.place[0] for item in area.closing()] == ["k=1", "k=1", "k=2"]
    area.seal(area.closing())
    assert area.unsealed() is None
    assert area.entries(()) == []
    area.make_folder((*TEMPORARY, "0"))
    write(area, (*attempt(0), "k=1", name(JOBS[1])))
    assert area.unsealed()


def test_version_2_is_refused_by_name() -> None:
    """It is refused at the first rename of an attempt into the table, before any file of it is there."""
    area = begun()
    write(area, (*attempt(0), "k=1", name(JOBS[0])))
    for source, target in (((*attempt(0), "k=1"), ("k=1",)), (attempt(0), ("x",))):
        with pytest.raises(BadRequestError, match=r"straight into the table.*\.version=1"):
            area.rename(source, target)
    assert [entry.name for entry in area.entries(())] == ["_temporary"]


@pytest.mark.parametrize(
    "place",
    [("k=1", name(JOBS[0])), (name(JOBS[0]),), (*task_folder(0), name(JOBS[0])), (*attempt(0), "a.parquet")],
)
def test_only_attempts_are_written(place: StagingPath) -> None:
    """No writer puts a file straight into the table, nor one without a job."""
    with pytest.raises(BadRequestError):
        begun().create(place, overwrite=True)


def test_zombies_of_a_job_that_is_over_are_refused() -> None:
    """An attempt whose job is over is refused; one that is still writing then is not wanted any more."""
    area = begun()
    late, _ = area.create((*attempt(0), name(JOBS[0])), overwrite=False)
    write(area, (*attempt(1), name(JOBS[0], 1)))
    area.delete(TEMPORARY, recursive=True)
    assert not area.finish(late, 5)
    with pytest.raises(BadRequestError, match="is over"):
        area.create((*attempt(2), name(JOBS[0])), overwrite=False)
    assert not area.rename(attempt(1), task_folder(1))
    assert area.unsealed() is None


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("root", [(), DYNAMIC])
def test_two_jobs_at_once(root: StagingPath, written: bool) -> None:
    """The first request of the second job is refused, whichever it is; the first job goes on."""
    area = begun(root)
    if written:
        write(area, (*attempt(0, 0, root), "k=1", name(JOBS[0])))
    for place in ((*TEMPORARY, "0"), (f".spark-staging-{JOBS[1]}", *TEMPORARY, "0")):
        with pytest.raises(BadRequestError, match=r"still writing.*one after the other"):
            area.make_folder(place)
    for place in ((), ("k=1",)):
        with pytest.raises(BadRequestError, match="still writing"):
            area.delete(place, recursive=True)
    if written or root:
        with pytest.raises(BadRequestError, match="still writing"):
            area.create((*attempt(1), name(JOBS[1])), overwrite=False)
    with pytest.raises(UnsealedWriteError):
        area.mark((f".spark-staging-{JOBS[1]}", *SUCCESS))
    write(area, (*attempt(1, 0, root), "k=1", name(JOBS[0], 1)))
    assert area.rename(attempt(1, 0, root), task_folder(1, root))
    # The second job deletes only its own files nevertheless.
    area.delete((f".spark-staging-{JOBS[1]}", *TEMPORARY), recursive=True)
    area.delete((f".spark-staging-{JOBS[1]}",), recursive=True)
    commit_job(area, 1, root)
    assert area.mark((*root, *SUCCESS)) is not bool(root)
    if root:
        area.delete(("k=1",), recursive=True)
        assert area.rename((*root, "k=1"), ("k=1",))
        assert area.delete(root, recursive=True).seals
    assert [item.place for item in area.closing()] == [("k=1", name(JOBS[0], 1))]
    area.seal(area.closing())
    assert area.unsealed() is None
    with pytest.raises(BadRequestError, match="is over"):
        area.create((*attempt(1), name(JOBS[1])), overwrite=False)


def test_an_attempt_may_make_folders() -> None:
    """Hadoop's client makes them with the file; without a job there is nothing that they could be for."""
    area = begun()
    assert area.make_folder((*attempt(0), "k=1"))
    area.delete(TEMPORARY, recursive=True)
    with pytest.raises(BadRequestError, match="no job that has begun"):
        area.make_folder((*attempt(0), "k=1"))


def test_a_job_of_partitions_asks_again_for_its_folder() -> None:
    """Its requests tell which job they are of; but not after its end."""
    area = begun(DYNAMIC)
    assert area.make_folder((*DYNAMIC, *TEMPORARY, "0"))
    with pytest.raises(BadRequestError, match="only Spark"):
        area.create((*attempt(0, 0, DYNAMIC), name(JOBS[1])), overwrite=False)
    assert area.delete(DYNAMIC, recursive=True).existed
    with pytest.raises(BadRequestError, match="is over"):
        area.make_folder((*DYNAMIC, *TEMPORARY, "0"))
    assert area.unsealed() is None


def test_a_mark_is_of_one_job() -> None:
    """The mark of a job that has not ended, or works elsewhere, seals nothing."""
    area = begun(DYNAMIC)
    write(area, (*attempt(0, 0, DYNAMIC), "k=1", name(JOBS[0])))
    assert area.rename(attempt(0, 0, DYNAMIC), task_folder(0, DYNAMIC))
    commit_job(area, 1, DYNAMIC)
    with pytest.raises(UnsealedWriteError, match="no job that can be sealed"):
        area.mark(SUCCESS)
    with pytest.raises(UnsealedWriteError, match="still at work"):
        area.closing()


@pytest.mark.parametrize("written", [False, True])
def test_an_attempt_of_a_job_that_was_aborted_before_its_first_file(written: bool) -> None:
    """Spark's last deletion names the job: its late attempts delay no other job."""
    area = begun()
    area.delete(TEMPORARY, recursive=True)
    if written:  # between the two last requests of the abort
        write(area, (*attempt(0), name(JOBS[0])))
    found = area.delete(DYNAMIC, recursive=True)
    assert (found.existed, found.dropped) == (False, (1,) if written else ())
    with pytest.raises(BadRequestError, match="is over"):
        area.create((*attempt(1), name(JOBS[0])), overwrite=False)
    assert area.unsealed() is None
    area.make_folder((*TEMPORARY, "0"))
    with pytest.raises(BadRequestError, match="is over"):
        area.create((*attempt(1), name(JOBS[0])), overwrite=False)
    write(area, (*attempt(0), name(JOBS[1])))


@pytest.mark.parametrize("place", [("a",) * (DEPTH_MAX + 1), ("x" * 256,), ("x=1",) * 30_000])
def test_places_are_bounded_in_every_request(place: StagingPath) -> None:
    """No request makes folders without end."""
    area = begun()
    write(area, (*attempt(0), name(JOBS[0])))
    file = name(JOBS[0])
    for ask in (
        lambda: area.make_folder(place),
        lambda: area.create((*attempt(0), *place, file), overwrite=False),
        lambda: area.rename(attempt(0), place),
    ):
        with pytest.raises(TooLargeError, match="at most 40 names of 255 characters"):
            ask()
    area.delete(TEMPORARY, recursive=True)
    with pytest.raises(TooLargeError):
        area.delete((*place, "x=1"), recursive=True)
    assert (area.unsealed(), area.entries(())) == (None, [])


def test_folders_and_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a number of their own, and what the files may need."""
    monkeypatch.setattr(areas, "NAMES_MAX", 100)
    area = StagingArea()
    for number in range(49):
        area.make_folder((f"k={number}",))
        area.delete((f".spark-staging-{JOBS[number]}",), recursive=True)
    area.make_folder((*TEMPORARY, "0"))
    for place in (("k=x",), (*TEMPORARY, "0", "x")):
        with pytest.raises(TooLargeError, match="folders and jobs"):
            area.make_folder(place)
    area.make_folder(("k=1",))  # is there
    with pytest.raises(TooLargeError, match="folders and jobs"):
        area.delete((".spark-staging-ffffffff-0000-4000-8000-000000000000",), recursive=True)
    with pytest.raises(TooLargeError, match="folders and jobs"):
        area.create((*attempt(0), name("f" * 8 + JOBS[0][8:])), overwrite=False)


def test_a_job_that_fails_in_the_middle_of_its_commit() -> None:
    """The files that it has moved stay unsealed, whatever later jobs do; an overwrite clears them."""
    area = begun()
    write(area, (*attempt(0), name(JOBS[0])))
    assert area.rename(attempt(0), task_folder(0))
    merge(area, task_folder(0), ())
    area.delete(TEMPORARY, recursive=True)
    area.make_folder((*TEMPORARY, "0"))
    write(area, (*attempt(0), name(JOBS[1])))
    assert area.rename(attempt(0), task_folder(0))
    commit_job(area, 1)
    assert area.mark(SUCCESS)
    assert [job_of_file(item.place) for item in area.closing()] == [JOBS[1]]
    area.seal(area.closing())
    assert JOBS[0] in str(area.unsealed())
    assert area.delete((), recursive=True).dropped == (1,)


def test_a_job_that_begins_while_one_is_sealed() -> None:
    """The files that the first job has moved into place are sealed, and the second job goes on."""
    area = begun()
    write(area, (*attempt(0), name(JOBS[0])))
    assert area.rename(attempt(0), task_folder(0))
    commit_job(area, 1)
    found = area.closing()
    area.make_folder((*TEMPORARY, "0"))
    second = write(area, (*attempt(0), name(JOBS[1])))
    area.seal(found)
    assert area.rename(attempt(0), task_folder(0))
    commit_job(area, 1)
    assert [item.number for item in area.closing()] == [second]


def test_an_overwrite_must_end() -> None:
    """The rows are gone at once; without the job's seal the transaction would commit that alone."""
    area = StagingArea()
    assert area.delete((), recursive=True).replaces == ()
    area.seal(area.closing())  # no job is at work
    assert "its rows were removed" in str(area.unsealed())
    area.make_folder((*TEMPORARY, "0"))
    area.delete(TEMPORARY, recursive=True)
    assert "its rows were removed" in str(area.unsealed())
    assert area.mark(SUCCESS)
    area.seal(area.closing())
    assert area.unsealed() is None


@pytest.mark.parametrize("how", ["aborted", "in the middle", "partitions", "never began"])
def test_a_failed_overwrite_is_not_forgiven(how: str) -> None:
    """Later files would be committed without the rows to come: only another overwrite is accepted."""
    root = DYNAMIC if how == "partitions" else ()
    area = StagingArea()
    if how != "partitions":
        area.delete((), recursive=True)
    if how == "never began":  # since another one was faster
        area.make_folder((*TEMPORARY, "0"))
        with pytest.raises(BadRequestError, match="still writing"):
            area.make_folder((*TEMPORARY, "0"))
    else:
        area.make_folder((*root, *TEMPORARY, "0"))
    write(area, (*attempt(0, 0, root), "k=1", name(JOBS[0])))
    if how != "aborted":
        assert area.rename(attempt(0, 0, root), task_folder(0, root))
        commit_job(area, 1, root)
    match how:
        case "partitions":
            assert not area.mark((*root, *SUCCESS))
            area.delete(("k=1",), recursive=True)  # and dies before the rename
        case "aborted":
            area.delete(TEMPORARY, recursive=True)
        case "in the middle":
            area.delete(("k=1", name(JOBS[0])), recursive=True)
        case _:
            assert area.mark(SUCCESS)
            area.seal(area.closing())
    area.delete(DYNAMIC, recursive=True)
    assert "rows were removed" in str(area.unsealed())
    if how != "never began":
        for ask in (
            lambda: area.make_folder((*TEMPORARY, "0")),
            lambda: area.make_folder((f".spark-staging-{JOBS[1]}", *TEMPORARY, "0")),
            lambda: area.create((*attempt(0), name(JOBS[1])), overwrite=False),
            lambda: area.settle(JOBS[1], []),
        ):
            with pytest.raises(
                BadRequestError, match=r"has removed rows.*overwrite all of the table, or roll"
            ):
                ask()
        assert "rows were removed" in str(area.unsealed())
    area.delete((), recursive=True)
    area.make_folder((*TEMPORARY, "0"))
    write(area, (*attempt(0), name(JOBS[1])))
    assert area.rename(attempt(0), task_folder(0))
    commit_job(area, 1)
    assert area.mark(SUCCESS)
    area.seal(area.closing())
    assert area.unsealed() is None


def test_partitions_of_two_columns_are_replaced() -> None:
    """A client that reads that a partition existed makes no folder above it before the rename."""
    area = begun(DYNAMIC)
    for number in range(2):
        write(area, (*attempt(0, 0, DYNAMIC), "a=1", f"b={number}", name(JOBS[0], 0, number)))
    assert area.rename(attempt(0, 0, DYNAMIC), task_folder(0, DYNAMIC))
    commit_job(area, 1, DYNAMIC)
    assert not area.mark((*DYNAMIC, *SUCCESS))
    for number in range(2):
        assert area.delete(("a=1", f"b={number}"), recursive=True).existed
        assert area.rename((*DYNAMIC, "a=1", f"b={number}"), ("a=1", f"b={number}"))
    assert area.delete(DYNAMIC, recursive=True).seals
    assert [item.place[:2] for item in area.closing()] == [("a=1", "b=0"), ("a=1", "b=1")]
    area.seal(area.closing())
    assert area.entries(()) == []


@pytest.mark.parametrize("aborted", ["", "in the middle", "at the end"])
def test_partitions_are_replaced_when_the_jobs_folder_goes(aborted: str) -> None:
    """The job works in its own folder; it is sealed when that is deleted with nothing left in it.

    An abort does not seal it, even if all files are in place, since an answer was lost.
    """
    root = DYNAMIC
    area = begun(root)
    for task in (0, 1):
        write(area, (*attempt(task, 0, root), f"k={task}", name(JOBS[0], task)))
        assert area.rename(attempt(task, 0, root), task_folder(task, root))
    with pytest.raises(BadRequestError):
        area.rename((*root, "_temporary"), ("k=0",))
    commit_job(area, 2, root)
    assert not area.mark((*root, "_SUCCESS"))
    for task in range(1 if aborted == "in the middle" else 2):
        found = area.delete((f"k={task}",), recursive=True)
        assert found.replaces == (f"k={task}",)
        assert area.rename((*root, f"k={task}"), (f"k={task}",))
    with pytest.raises(UnsealedWriteError):
        area.closing()
    if aborted:
        assert not area.delete((*root, *TEMPORARY), recursive=True).existed
    found = area.delete(root, recursive=True)
    assert found.seals is not bool(aborted)
    assert len(found.dropped) == (aborted == "in the middle")
    if not aborted:
        assert [item.place[0] for item in area.closing()] == ["k=0", "k=1"]
        area.seal(area.closing())
    assert bool(area.unsealed()) is bool(aborted)


def test_like_a_file_system() -> None:
    """The answers are those that Hadoop's client expects for names that exist, or do not."""
    area = begun()
    place = (*attempt(0), "k=1", name(JOBS[0]))
    first = write(area, place)
    with pytest.raises(BadRequestError, match="exists already"):
        area.create(place, overwrite=False)
    second, dropped = area.create(place, overwrite=True)
    assert dropped == (first,)
    with pytest.raises(BadRequestError, match="still being written"):
        area.rename(attempt(0), task_folder(0))
    assert area.finish(second, 7)
    assert area.entries((*attempt(0), "k=1")) == [area.entry(place)]
    assert area.entry(place) is not None
    assert not area.make_folder((*place, "x"))
    assert not area.rename((*attempt(3),), task_folder(3))
    assert not area.delete(("_temporary", "1"), recursive=True).existed
    with pytest.raises(BadRequestError, match="not empty"):
        area.delete(attempt(0), recursive=False)
    assert area.delete(attempt(0), recursive=True).dropped == (second,)
    assert area.entry(attempt(0)) is None
