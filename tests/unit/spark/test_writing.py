"""`tl.write` without Spark: what it tells the writer, and what a job that has failed leaves."""

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
        """One of them."""
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        """Change one."""
        self.values[name] = value

    def unset(self, name: str) -> None:
        """Forget one."""
        self.values.pop(name, None)


class Frame:
    """A DataFrame with its session and writer, whose job ends as it is told to."""

    columns = ("k",)

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.sparkSession = self
        self.write = self
        self.conf = Settings()
        self.told: dict[str, Any] = {}

    def select(self, *_: str) -> Self:
        """These columns."""
        return self

    def mode(self, mode: str) -> Self:
        """How to save."""
        self.told["mode"] = mode
        return self

    def options(self, **options: str) -> Self:
        """Of the writer."""
        self.told |= options
        return self

    def partitionBy(self, *names: str) -> Self:  # noqa: N802 - Spark's name
        """The folders."""
        self.told["by"] = names
        return self

    def parquet(self, path: str) -> None:
        """Run the job."""
        self.told["path"] = path
        if self.error is not None:
            raise self.error


class Tx:
    """A transaction of a table with a partition column, as far as a write needs it."""

    def __init__(self, tx: Any) -> None:
        self.tx, self.sealed = tx, 0

    def definition(self, _: str) -> dict[str, Any]:
        """Of the table."""
        return {"columns": [{"name": "k"}], "partition_by": ["k"]}

    def path(self, _: str) -> str:
        """Of the table."""
        return "webhdfs://r1:1/transactions/t/default/t"

    def seal(self, _: str) -> None:
        """The job has ended well."""
        self.sealed += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tx, name)


def write(frame: Frame, tx: Tx, mode: str) -> None:
    """`tl.write` of a frame."""
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
    """No request of the job itself decides it, but for the mode that cannot be told from an abort."""
    frame = Frame()
    with fake_db.begin() as begun:
        tx = Tx(begun)
        write(frame, tx, mode)
        assert tx.sealed == 1
    assert (frame.told["mode"], frame.told["partitionOverwriteMode"], frame.told[MARK]) == (
        save_mode,
        partitions,
        mark,
    )
    assert frame.told["dfs.webhdfs.socket.read-timeout"] in {"60s", "30m"}
    assert "spark.sql.parquet.outputTimestampType" not in frame.conf.values


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions"])
@pytest.mark.parametrize("error", [OSError("Read timed out"), KeyboardInterrupt()])
def test_a_failed_job_leaves_rollback_only(fake_db: Database, mode: str, error: BaseException) -> None:
    """Its last request may have been carried out: the same rows again, or a commit, might be wrong."""
    tx = Tx(fake_db.begin())
    with pytest.raises(type(error)):
        write(Frame(error), tx, mode)
    assert (tx.sealed, tx.state) == (0, TransactionState.FAILED)
    with pytest.raises(TransactionClosedError, match="roll it back"):
        tx.commit()
    tx.rollback()


def test_a_block_that_swallows_the_error_of_a_job_does_not_commit(fake_db: Database) -> None:
    """It is told so."""
    error = OSError("Read timed out")
    with (
        pytest.raises(TransactionClosedError, match="Read timed out"),
        fake_db.begin() as tx,
        pytest.raises(OSError, match="Read timed out"),
    ):
        write(Frame(error), Tx(tx), "append")


def test_a_home_that_is_gone_is_what_is_raised(fake_cluster: FakeCluster, fake_db: Database) -> None:
    """Not what the tasks have met."""
    tx = Tx(fake_db.begin())
    fake_cluster["r1"].stop()
    with pytest.raises(UnavailableError, match="the job has failed and nothing of it is committed"):
        write(Frame(OSError("connection refused")), tx, "append")
