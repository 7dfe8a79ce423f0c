"""Whole files for tables whose rows follow rules: unique keys, derived tables; and files that replace rows.

The requests are those of Spark's committer, by plain HTTP; `test_spark_changes.py` has Spark itself.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import nothing_left
from tests.support.spark.hdfs_client import Folder, parquet
from tests.support.waiting import TIMEOUT_S
from tidelock.client import Database, Transaction
from tidelock.cluster import LocalCluster
from tidelock.errors import (
    BadRequestError,
    CorruptError,
    DuplicateKeyError,
    RefusedError,
    SchemaMismatchError,
    SerializationConflictError,
    TableModeError,
    TransactionClosedError,
    UnsealedWriteError,
    UnsupportedInTransactionError,
)

NUMBERS = itertools.count(1)
ROWS = pa.schema(
    [
        pa.field("p", pa.int32(), nullable=False),
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int64()),
    ]
)
STORED = pa.schema([ROWS.field("k"), ROWS.field("v")])
Row = tuple[int, int, int | None]
FIRST: Sequence[Row] = ((1, 1, 10), (1, 2, 20), (2, 1, 30))


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas; changes cut every part, and a conflict is told at once."""
    return module_cluster(settings={**QUICK, "cut_part_bytes_min": 1, "lock_wait_s": 0.0})


@pytest.fixture(scope="module")
def db(local: LocalCluster) -> Iterator[Database]:
    """A session at r1."""
    with local.connect("r1") as found:
        yield found


@pytest.fixture(scope="module")
def other(local: LocalCluster) -> Iterator[Database]:
    """A session at r2."""
    with local.connect("r2") as found:
        yield found


def rows(*given: Row) -> pa.Table:
    """Return rows (p, k, v)."""
    return pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in given], ROWS)


def found(reader: Database | Transaction, table: str) -> list[tuple[int | None, ...]]:
    """Return the rows of a table."""
    return sorted(tuple(row.values()) for row in reader.read(table).to_pylist())


def make(
    db: Database, properties: Mapping[str, str], *given: Row, partition_by: Sequence[str] = ("p",)
) -> str:
    """Return a new table with some rows."""
    name = f"t{next(NUMBERS)}"
    db.create_table(name, ROWS, partition_by=[*partition_by], properties=dict(properties))
    if given:
        db.insert(name, rows(*given), wait="all")
    return name


def keyed(db: Database, on_duplicate: str = "refuse", given: Sequence[Row] = FIRST) -> str:
    """Return a new table with a unique key and some rows."""
    return make(db, {"unique_key": "k,p", "on_duplicate": on_duplicate}, *given)


def write(tx: Transaction, table: str, *files: Sequence[Row]) -> None:
    """Write rows as a job with a task for each file, whose rows are of one partition; it is not sealed."""
    folder, number = Folder(tx.path(table)), str(uuid.uuid4())
    folder.setup()
    for task, group in enumerate(files):
        stored = parquet(rows(*group).select(STORED.names))
        folder.commit_task(folder.write_task({f"p={group[0][0]}": stored}, task, job=number), task)
    folder.close_job()


def add(tx: Transaction, table: str, *files: Sequence[Row]) -> None:
    """Write rows as a job, and seal it."""
    write(tx, table, *files)
    tx.seal(table)


@pytest.fixture(autouse=True)
def _clean(local: LocalCluster, db: Database) -> Iterator[None]:
    """Require after each test that nothing is left of what was refused, and that the audit finds nothing."""
    yield
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
    assert db.audit(timeout_s=TIMEOUT_S).findings == []


# -- unique keys ---------------------------------------------------------------------------------------------


def test_files_with_new_keys_become_parts_of_the_table(db: Database) -> None:
    """Of several partitions, and of several files in one; the other rows stay as they are."""
    table = keyed(db, given=((1, 1, 10), (2, 2, 20)))
    with db.begin() as tx:
        add(tx, table, [(1, 5, 1), (1, 6, 2)], [(1, 7, None)], [(2, 9, 4)])
    assert found(db, table) == [(1, 1, 10), (1, 5, 1), (1, 6, 2), (1, 7, None), (2, 2, 20), (2, 9, 4)]


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ([[(1, 3, 0), (1, 2, 0)]], "k=2, p=1"),
        ([[(1, 4, 0)], [(1, 4, 1)]], "k=4, p=1"),
        ([[(1, 5, 0)], [(2, 7, 0), (2, 7, 0)]], "k=7, p=2"),
    ],
    ids=["in the table", "in two files", "in one file"],
)
def test_a_file_with_a_key_that_is_taken_is_refused(
    db: Database, files: Sequence[Sequence[Row]], key: str
) -> None:
    """The error names the key, and nothing of the transaction is kept."""
    table = keyed(db)
    with pytest.raises(DuplicateKeyError, match=key), db.begin() as tx:
        add(tx, table, *files)
    assert found(db, table) == sorted(FIRST)


def test_a_key_that_the_transaction_itself_has_inserted_is_taken(db: Database) -> None:
    """Rows of an earlier statement count like those of the table."""
    table = keyed(db)
    tx = db.begin()
    tx.insert(table, rows((1, 8, 1)))
    with pytest.raises(DuplicateKeyError, match="k=8, p=1"):
        add(tx, table, [(1, 8, 2)])
    tx.rollback()
    assert found(db, table) == sorted(FIRST)


def test_rows_of_files_replace_those_with_their_keys(db: Database) -> None:
    """Where the table replaces duplicates; parts that lose all rows are not read again."""
    table = keyed(db, "replace")
    with db.begin() as tx:
        tx.insert(table, rows((2, 5, 50)))
        add(tx, table, [(1, 2, 21), (1, 3, 31)], [(2, 1, 99), (2, 5, 51)])
        assert found(tx, table) == [(1, 1, 10), (1, 2, 21), (1, 3, 31), (2, 1, 99), (2, 5, 51)]
        assert found(db, table) == sorted(FIRST)
    assert found(db, table) == [(1, 1, 10), (1, 2, 21), (1, 3, 31), (2, 1, 99), (2, 5, 51)]
    with pytest.raises(DuplicateKeyError, match="k=6, p=1"), db.begin() as tx:
        add(tx, table, [(1, 6, 1), (1, 6, 2)])  # files have no order that says which row is the last


def test_of_two_jobs_with_one_key_the_second_conflicts(db: Database, other: Database) -> None:
    """Whether the first is open still or committed; keys of another range are no conflict."""
    table = keyed(db)
    one, two, three = db.begin(fresh=True), other.begin(fresh=True), other.begin(fresh=True)
    add(one, table, [(1, 100, 1)])
    with pytest.raises(SerializationConflictError):
        add(two, table, [(1, 100, 2)])
    two.rollback()
    one.commit(wait="all")
    with pytest.raises(SerializationConflictError, match="CSN"):
        add(three, table, [(1, 100, 3)])
    three.rollback()
    with other.begin(fresh=True) as four:
        add(four, table, [(1, 200, 4)])
    assert found(other, table) == sorted([*FIRST, (1, 100, 1), (1, 200, 4)])


def test_a_required_partition_column_takes_no_null(db: Database) -> None:
    """A null is equal to no other key, so the same row could come twice."""
    table = keyed(db)
    tx = db.begin()
    folder = Folder(tx.path(table))
    folder.setup()
    null = {"p=__HIVE_DEFAULT_PARTITION__": parquet(rows((1, 9, 1)).select(STORED.names))}
    folder.commit_task(folder.write_task(null))
    folder.close_job()
    with pytest.raises(SchemaMismatchError, match=r"column p .* is required"):
        tx.seal(table)
    tx.rollback()


def test_a_change_of_rows_claims_only_new_keys(db: Database, other: Database) -> None:
    """Rows that are written again keep their keys: an insert between them is no conflict."""
    table = keyed(db, given=((1, 10, 1), (1, 20, 2), (1, 30, 3)))
    tx = db.begin(fresh=True)
    tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
    write(tx, table, [(1, 10, 1), (1, 30, 33)])
    other.insert(table, rows((1, 25, 5)), wait="all")
    tx.seal_change(table, rows_deleted=1, rows_updated=1)
    tx.commit()
    assert found(db, table) == [(1, 10, 1), (1, 25, 5), (1, 30, 33)]
    tx = db.begin(fresh=True)
    names = [one.file.rpartition("/")[2] for one in db.parts(table) if one.rows == 2]
    tx.replace_files(table, names)
    write(tx, table, [(1, 10, 1), (1, 25, 33)])
    with pytest.raises(DuplicateKeyError, match="k=25"):
        tx.seal_change(table, rows_updated=1)
    tx.rollback()


# -- derived tables ------------------------------------------------------------------------------------------

SUMS = pa.schema([("p", pa.int32()), ("total", pa.int64())])


def test_derived_tables_follow_files_to_any_depth(db: Database) -> None:
    """Their rows are made of those of the files alone, and come with the same commit."""
    table = keyed(db)
    sums, counts = f"{table}_sums", f"{table}_counts"
    db.create_table(
        sums, SUMS, derived_from=table, derived_sql="SELECT p, sum(v) AS total FROM inserted GROUP BY p"
    )
    db.create_table(
        counts, SUMS, derived_from=sums, derived_sql="SELECT p, count(*) AS total FROM inserted GROUP BY p"
    )
    with db.begin() as tx:
        add(tx, table, [(1, 5, 1), (1, 6, 2)], [(2, 7, 40)])
        assert found(db, sums) == []
    assert found(db, sums) == [(1, 3), (2, 40)]
    assert found(db, counts) == [(1, 1), (2, 1)]


def test_a_derived_table_that_cannot_follow_refuses_the_files(db: Database) -> None:
    """The error names it, and nothing of either table is kept."""
    table = make(db, {})
    derived = f"{table}_d"
    sql = f"SELECT p, v + {2**63 - 10} AS total FROM inserted"
    db.create_table(derived, SUMS, derived_from=table, derived_sql=sql)
    with db.begin() as tx:
        add(tx, table, [(1, 1, 3)])
    with pytest.raises(RefusedError, match=f"{derived}, derived from"), db.begin() as tx:
        add(tx, table, [(1, 2, 30)])
    assert found(db, table) == [(1, 1, 3)]
    assert found(db, derived) == [(1, 2**63 - 7)]


# -- files that replace rows ---------------------------------------------------------------------------------


def files_of(db: Database, table: str, csn: int) -> list[str]:
    """Return the names of the files of a table."""
    return [part.file.rpartition("/")[2] for part in db.parts(table, csn=csn)]


def test_a_job_replaces_the_rows_of_the_parts_that_were_taken(db: Database) -> None:
    """Until its seal the transaction cannot be committed; then the numbers are those of a statement."""
    table = make(db, {}, *FIRST)
    tx = db.begin()
    taken = tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
    assert (len(taken.parts), taken.rows) == (2, 3)
    assert {part.csn for part in taken.parts} == {tx.snapshot_csn}
    with pytest.raises(BadRequestError, match="replaces rows of 2 parts"):
        tx.seal(table)
    tx.rollback()
    with pytest.raises(UnsealedWriteError, match="replaces their 3 rows"), db.begin() as tx:
        tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
    with db.begin() as tx:
        tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
        write(tx, table, [(1, 1, 11), (1, 9, 90)])
        done = tx.seal_change(table, rows_deleted=2, rows_updated=1, rows_inserted=1)
    assert (done.parts_removed, done.parts_added) == (2, 1)
    assert found(db, table) == [(1, 1, 11), (1, 9, 90)]


def test_no_other_statement_sees_a_change_that_is_half_done(db: Database) -> None:
    """The rows are in no part while the job writes; statements of other transactions see them."""
    table, copy = make(db, {}, *FIRST), make(db, {})
    statements: list[Any] = [
        lambda tx: tx.read(table),
        lambda tx: tx.sql(f"insert into {copy} select * from {table}"),
        lambda tx: tx.truncate(table),
        lambda tx: tx.delete(table, "k = 1"),
    ]
    for statement in statements:
        tx = db.begin()
        tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
        with pytest.raises(UnsupportedInTransactionError, match="wait for its end"):
            statement(tx)
        assert found(db, table) == sorted(FIRST)
        tx.rollback()


@pytest.mark.parametrize("wrong", [{"rows_deleted": 1}, {}, {"rows_deleted": 2, "rows_inserted": 1}])
def test_a_job_that_loses_or_doubles_a_row_is_refused(db: Database, wrong: dict[str, int]) -> None:
    """Whatever it says of the rows that it has changed."""
    table = make(db, {}, *FIRST)
    tx = db.begin()
    tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
    write(tx, table, [(1, 1, 11)])
    with pytest.raises(CorruptError, match="its files have 1"):
        tx.seal_change(table, **wrong)
    with pytest.raises(TransactionClosedError):
        tx.commit()
    tx.rollback()
    assert found(db, table) == sorted(FIRST)


def test_all_rows_are_deleted_without_a_job(db: Database) -> None:
    """Nothing remains to be written."""
    table = make(db, {}, *FIRST)
    with db.begin() as tx:
        rows_taken = tx.replace_files(table, files_of(db, table, tx.snapshot_csn)).rows
        tx.seal_change(table, rows_deleted=rows_taken)
    assert found(db, table) == []


def test_of_two_that_take_a_part_one_is_told_before_it_writes(db: Database, other: Database) -> None:
    """Whether the other has only taken it, or has committed."""
    table = make(db, {}, *FIRST)
    one, two, late = db.begin(), other.begin(fresh=True), other.begin(fresh=True)
    names = files_of(db, table, one.snapshot_csn)
    one.replace_files(table, names[:1])
    with pytest.raises(SerializationConflictError):
        two.replace_files(table, names)
    two.rollback()
    one.seal_change(table, rows_deleted=one_rows(db, table, names[0]))
    one.commit(wait="all")
    with pytest.raises(SerializationConflictError, match="was changed by"):
        late.replace_files(table, names)
    late.rollback()


def one_rows(db: Database, table: str, name: str) -> int:
    """Return the number of rows in a file."""
    return next(part.rows for part in db.parts(table) if part.file.endswith(name))


def test_parts_that_compaction_has_merged_are_taken_as_a_whole(db: Database) -> None:
    """Also the rows that were not asked for, which the client then reads and writes again."""
    table = make(db, {}, partition_by=())
    for number in range(4):
        db.insert(table, rows((1, number, number)), wait="all")
    tx = db.begin(fresh=True)
    names = files_of(db, table, tx.snapshot_csn)
    assert len(names) == 4
    db.optimize(table)
    taken = tx.replace_files(table, names[:1])
    assert (len(taken.parts), taken.rows) == (1, 4)
    assert taken.parts[0].csn > tx.snapshot_csn
    assert files_of(db, table, taken.parts[0].csn) == [taken.parts[0].file]
    tx.seal_change(table, rows_deleted=4)
    tx.commit()
    assert found(db, table) == []


def test_small_parts_that_are_listed_as_one_file_are_taken_together(db: Database) -> None:
    """The name of a combined file stands for its parts."""
    table = make(db, {}, partition_by=())
    for number in range(3):
        db.insert(table, rows((1, number, number)), wait="all")
    with db.begin(fresh=True) as tx:
        with db.snapshot(tx.snapshot_csn) as snapshot:
            (name,) = (one for one in Folder(snapshot.path(table)).names("") if not one.startswith("_"))
        assert name.startswith("combined1-")
        taken = tx.replace_files(table, [name])
        assert (len(taken.parts), taken.rows) == (3, 3)
        tx.seal_change(table, rows_deleted=3)
    assert found(db, table) == []


def test_what_cannot_be_taken_is_refused_with_the_way_out(db: Database) -> None:
    """A file that is not there, a table that the transaction has changed, landing tables, read committed."""
    table = make(db, {}, *FIRST)
    landing = make(db, {"landing": "on"}, partition_by=())
    cases: list[tuple[type[RefusedError], str, Any]] = [
        (BadRequestError, "is not a file of table", lambda tx: tx.replace_files(table, ["part-0.parquet"])),
        (TableModeError, "landing", lambda tx: tx.replace_files(landing, [])),
        (BadRequestError, "no parts of table", lambda tx: tx.seal_change(table)),
    ]
    for kind, message, statement in cases:
        with pytest.raises(kind, match=message), db.begin() as tx:
            statement(tx)
    before: list[Any] = [
        lambda tx: tx.insert(table, rows((1, 7, 7))),
        lambda tx: tx.delete(table, "k = 1"),
        lambda tx: tx.alter_table(table, properties={"comment": "x"}),
        lambda tx: add(tx, table, [(1, 7, 7)]),
    ]
    for earlier in before:
        tx = db.begin()
        earlier(tx)
        with pytest.raises(UnsupportedInTransactionError, match="in a transaction of its own"):
            tx.replace_files(table, files_of(db, table, tx.snapshot_csn))
        tx.rollback()
    tx = db.begin(isolation="read_committed")
    with pytest.raises(UnsupportedInTransactionError, match="isolation='snapshot'"):
        tx.replace_files(table, [])
    tx.rollback()
    assert found(db, table) == sorted(FIRST)
