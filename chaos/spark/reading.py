"""Jobs of Spark that read tables at one CSN: at any replica, at one alone, and from one with failover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.clients.session import Found
from chaos.record.history import History, Operation
from chaos.spark.bearing import require_bearable
from chaos.spark.job import SparkEndedError, SparkJob, SparkJobError, SparkSession

if TYPE_CHECKING:
    from chaos.workloads.workload import Workload  # the workloads import this module

Rows = dict[str, list[list[Any]]]


@dataclass(frozen=True, slots=True)
class Question:
    """One read.

    Attributes:
        value: Its micro-operations, reads with None.
        queries: SQL of Spark, by names.
        found: Makes of the answer what was read: of the rows of each query, or of each table.
        tables: The tables; by default the names of the queries.
        job: The method of `chaos.spark.jobs.Jobs`; `tables` reads whole tables, without queries.
    """

    value: Sequence[Operation]
    queries: dict[str, str]
    found: Callable[[Any], Found]
    tables: Sequence[str] = ()
    job: str = "rows"

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of the job."""
        tables = {"tables": list(self.tables or self.queries)}
        return {**tables, "queries": self.queries} if self.job == "rows" else tables


def reading(
    load: Workload, ask: Callable[[], Question], *, f: str = "read", history: History | None = None
) -> list[SparkJob]:
    """Return jobs that read, one for each way.

    Args:
        load: The workload.
        ask: Returns what the next read asks for.
        f: The kind of the operation in the history.
        history: Where it goes, if not into the history of the workload.
    """
    read = partial(_read, load, ask, f, history or load.history)
    return [
        SparkJob(f"{load.name}, read at any replica", partial(read, pinned=False, failover=True)),
        SparkJob(f"{load.name}, read at one replica", partial(read, pinned=True, failover=False)),
        SparkJob(f"{load.name}, read with failover", partial(read, pinned=True, failover=True)),
    ]


def _read(
    load: Workload,
    ask: Callable[[], Question],
    f: str,
    history: History,
    session: SparkSession,
    *,
    pinned: bool,
    failover: bool,
) -> None:
    question = ask()
    process = history.process()
    began_ns = process.invoke(question.value, f)
    note = partial(
        load.world.journal.note,
        "call",
        workload=load.name,
        process=process.number,
        f="read",
        began_ns=began_ns,
        spark=session.number,
    )
    try:
        answer = session.call(question.job, **question.asked, pinned=pinned, failover=failover)
    except (SparkJobError, SparkEndedError) as error:
        process.fail(question.value, error=type(error).__name__)
        note(end="fail", error=type(error).__name__, message=str(error)[:1000])
        require_bearable(error)
        raise
    read = question.found(answer["rows"])
    where = f"Spark at {answer['replica'] or 'any'}{' with failover' if failover else ''}"
    process.ok(read.value, snapshot=answer["csn"], replica=where, fresh=False, **read.facts)
    note(end="ok", csn=answer["csn"], replica=answer["replica"])
