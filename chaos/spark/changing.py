"""Jobs of Spark that change rows in transactions of their own; one whose driver dies is not run again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.record.history import Operation
from chaos.spark.bearing import require_bearable
from chaos.spark.job import SparkEndedError, SparkJobError, SparkSession

if TYPE_CHECKING:
    from chaos.workloads.workload import Workload  # the workloads import this module


def change(load: Workload, session: SparkSession, value: Sequence[Operation], job: str, **args: Any) -> None:
    """Run a job that returns its CSN, and write it into the history and the journal.

    Args:
        load: The workload.
        session: The session.
        value: What it does, as the history has it.
        job: The method of `chaos.spark.jobs.Jobs`, by which the history calls the operation too.
        args: Its arguments.

    Raises:
        SparkJobError, SparkEndedError: It failed in a way that users have to bear.
        UnbearableError: It failed in another way.
    """
    process = load.history.process()
    began_ns = process.invoke(value, job)
    note = partial(
        load.world.journal.note,
        "call",
        workload=load.name,
        process=process.number,
        f="write",
        began_ns=began_ns,
        spark=session.number,
    )
    try:
        csn = session.call(job, **args)
    except (SparkJobError, SparkEndedError) as error:
        process.info(value, error=type(error).__name__)
        note(end="fail", error=type(error).__name__, message=str(error)[:1000])
        require_bearable(error)
        raise
    process.ok(value, csn=csn, session=session.number)
    note(end="ok", csn=csn)
