"""`tl.write` without Spark: the settings of the writer, and the transaction after a failed job."""

from __future__ import annotations

from typing import Any, Self, cast

import pytest

import tidelock.spark as tl
from tests.support.replicas.fake_agent import FakeCluster
from tidelock.client import Database, TransactionState
from tidelock.errors import TransactionClosedError, UnavailableError

MARK = "mapreduce.fileoutputcommitter.marksuccessfuljobs"


class Settings:
    """The settings of a session."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, name: str, default: str | None) -> str | None:
        """Return a setting."""
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        """Change a setting."""
        self.values[name] = value

    def unset(self, name: str) -> None:
        """Remove a setting."""
        self.values.pop(name, None)


class Frame:
    """A DataFrame, its session and its writer in one; its job ends with `error`, or well."""

    columns = ("k",)

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.sparkSession = self
        self.write = self
        self.conf = Settings()
        self.recorded: dict[str, Any] = {}

    def select(self, *_: str) -> Self:
        """Return the frame."""
        return self

    def mode(self, mode: str) -> Self:
        """Record the save mode."""
        self.recorded["mode"] = mode
        return self

    def options(self, **options: str) -> Self:
        """Record options of the writer."""
        self.recorded |= options
        return self

    def partitionBy(self, *names: str) -> Self:  # noqa: N802 - Spark's name
        """Record the partition columns."""
        self.recorded["by"] = names
        return self

    def parquet(self, path: str) -> None:
        """Run the job."""
        self.recorded["path"] = path
        if self.error is not None:
            raise self.error


class Tx:
    """A transaction of a table with a partition column, as far as a write needs it."""

    def __init__(self, tx: Any) -> None:
        self.tx, self.sealed = tx, 0

    def definition(self, _: str) -> dict[str, Any]:
        """Return the definition of the table."""
        return {"name": "default.t", "columns": [{"name": "k", "type": "int"}], "partition_by": ["k"]}

    def path(self, _: str) -> str:
        """Return the path of the table in the transaction."""
        return "webhdfs://r1:1/transactions/t/default/t"

    def seal(self, _: str) -> None:
        """Count the call."""
        self.sealed += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tx, name)


def write(frame: Frame, tx: Tx, mode: str) -> None:
    """Call `tl.write` for a frame."""
    tl.write(cast("Any", frame), cast("Any", tx), "t", cast("Any", mode))


@pytest.mark.parametrize(
    ("mode", "save_mode", "partitions", "mark"),
    [
        ("append", "append", "static", "false"),
        ("overwrite", "overwrite", "static", "false"),
        ("overwrite_partitions", "overwrite", "dynamic", "true"),
    ],
)
def test_a_job_is_sealed_behind_spark(
    fake_db: Database, mode: str, save_mode: str, partitions: str, mark: str
) -> None:
    """`tl.write` seals the job; only a job that replaces partitions writes the mark, too."""
    frame = Frame()
    with fake_db.begin() as begun:
        tx = Tx(begun)
        write(frame, tx, mode)
        assert tx.sealed == 1
    assert (frame.recorded["mode"], frame.recorded["partitionOverwriteMode"], frame.recorded[MARK]) == (
        save_mode,
        partitions,
        mark,
    )
    assert frame.recorded["dfs.webhdfs.socket.read-timeout"] in {"60s", "30m"}
    assert "spark.sql.parquet.outputTimestampType" not in frame.conf.values


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions"])
@pytest.mark.parametrize("error", [OSError("Read timed out"), KeyboardInterrupt()])
def test_a_failed_job_leaves_rollback_only(fake_db: Database, mode: str, error: BaseException) -> None:
    """After a failed job only a rollback is allowed, since the job's last request may have been executed."""
    tx = Tx(fake_db.begin())
    with pytest.raises(type(error)):
        write(Frame(error), tx, mode)
    assert (tx.sealed, tx.state) == (0, TransactionState.FAILED)
    with pytest.raises(TransactionClosedError, match="roll it back"):
        tx.commit()
    tx.rollback()


def test_a_block_that_swallows_the_error_of_a_job_does_not_commit(fake_db: Database) -> None:
    """A block that swallows the error of its job gets an error instead of a commit."""
    error = OSError("Read timed out")
    with (
        pytest.raises(TransactionClosedError, match="Read timed out"),
        fake_db.begin() as tx,
        pytest.raises(OSError, match="Read timed out"),
    ):
        write(Frame(error), Tx(tx), "append")


def test_a_home_that_is_gone_is_what_is_raised(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """If the home has died, the error says so; it is not the error of the job's tasks."""
    tx = Tx(fake_db.begin(fresh=True))
    fake_cluster["r1"].stop()
    with pytest.raises(UnavailableError, match="the job has failed and no row of it is committed"):
        write(Frame(OSError("connection refused")), tx, "append")
