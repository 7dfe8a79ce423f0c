"""Jobs of Spark that read tables at one CSN: at any replica, at one alone, and from one with failover."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.clients.session import Found
from chaos.record.history import History, Operation
from chaos.spark.bearing import require_bearable
from chaos.spark.job import SparkEndedError, SparkJob, SparkJobError, SparkSession

if TYPE_CHECKING:
    from chaos.workloads.workload import Workload  # the workloads import this module

Rows = dict[str, list[list[Any]]]


def reading(
    load: Workload,
    value: Sequence[Operation],
    queries: dict[str, str],
    found: Callable[[Rows], Found],
    *,
    tables: Sequence[str] = (),
    f: str = "read",
    history: History | None = None,
) -> list[SparkJob]:
    """Return jobs that read, one for each way.

    Args:
        load: The workload.
        value: The micro-operations, reads with None.
        queries: SQL of Spark, by names.
        found: Makes of the rows of all queries what was read.
        tables: The tables; by default the names of the queries.
        f: The kind of the operation in the history.
        history: Where it goes, if not into the history of the workload.
    """
    of = history or load.history
    read = partial(_read, load, value, queries, found, tables or list(queries), f, of)
    return [
        SparkJob(f"{load.name}, read at any replica", partial(read, pinned=False, failover=True)),
        SparkJob(f"{load.name}, read at one replica", partial(read, pinned=True, failover=False)),
        SparkJob(f"{load.name}, read with failover", partial(read, pinned=True, failover=True)),
    ]


def _read(
    load: Workload,
    value: Sequence[Operation],
    queries: dict[str, str],
    found: Callable[[Rows], Found],
    tables: Sequence[str],
    f: str,
    history: History,
    session: SparkSession,
    *,
    pinned: bool,
    failover: bool,
) -> None:
    process = history.process()
    began_ns = process.invoke(value, f)
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
        answer = session.call("rows", tables=list(tables), queries=queries, pinned=pinned, failover=failover)
    except (SparkJobError, SparkEndedError) as error:
        process.fail(value, error=type(error).__name__)
        note(end="fail", error=type(error).__name__, message=str(error)[:1000])
        require_bearable(error)
        raise
    read = found(answer["rows"])
    where = f"Spark at {answer['replica'] or 'any'}{' with failover' if failover else ''}"
    process.ok(read.value, snapshot=answer["csn"], replica=where, fresh=False, **read.facts)
    note(end="ok", csn=answer["csn"], replica=answer["replica"])
