"""A table four times as large as the memory of a SQL process is changed: what agent and process use is told.

The limits are small by settings, so that the table can be small too.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.cluster import ClusterFactory
from tidelock.client import Transaction
from tidelock.cluster import LocalCluster

MIB = 1 << 20
#: Of one SQL process, besides what it is itself.
MEMORY_BYTES = 64 * MIB
ROW_BYTES = 56
ROWS = 4_800_000
BATCH_ROWS = 100_000
SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.int32()), ("v", pa.int64()), ("s", pa.string())])
SETTINGS = {
    "reader_workers": 1,
    "sql_workers": 1,
    "sql_memory_bytes": MEMORY_BYTES,
    "sql_threads": 1,
    "row_group_bytes": 8 * MIB,
    "staged_memory_bytes_max": 16 * MIB,
    "insert_chunks_ahead": 2,
}
#: A join keeps a block of each of up to 128 partitions of either side, so it needs more.
JOIN_MEMORY_BYTES = 288 * MIB
JOIN_SHARE = 1 / 3
#: What the agent may grow by: row groups that are written, and pieces on the way.
AGENT_GROWTH_BYTES = 256 * MIB


def batches(begin: int, end: int, value: int) -> pa.RecordBatchReader:
    """Rows of ROW_BYTES in Arrow with keys in no order, made piece by piece."""

    def made() -> Iterator[pa.RecordBatch]:
        for first in range(begin, end, BATCH_ROWS):
            numbers = np.arange(first, min(first + BATCH_ROWS, end))
            keys = numbers * 2_654_435_761 % 1_000_000_007
            texts = pc.utf8_lpad(pa.array(keys).cast(pa.string()), 32, "0")
            columns = [keys, (numbers % 100).astype("int32"), np.full(len(keys), value), texts]
            yield pa.RecordBatch.from_arrays(
                [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns],
                schema=SCHEMA,
            )

    return pa.RecordBatchReader.from_batches(SCHEMA, made())


class Sampler:
    """The largest resident memory of the agent and of its SQL processes while something runs."""

    def __init__(self, agent: psutil.Process) -> None:
        self.agent = agent
        self.at_rest = agent.memory_info().rss
        self.largest = {"agent": 0, "sql": 0}

    def during(self, run: Callable[[], Any]) -> Any:
        """Run it; returns what it returns."""
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(ended,))
        watching.start()
        try:
            return run()
        finally:
            ended.set()
            watching.join()

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.05):
            self._note("agent", self.agent)
            for child in self.agent.children():
                if "tidelock.replica_agent.sql.worker" in _command(child):
                    self._note("sql", child)

    def _note(self, name: str, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.largest[name] = max(self.largest[name], process.memory_info().rss)


def _command(process: psutil.Process) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(psutil.Error):
        found = process.cmdline()
    return found


Statements = dict[str, Callable[[Transaction], object]]


def changed(cluster: LocalCluster, statements: Statements) -> list[str]:
    """Run each statement on all rows, and roll it back; returns what to show, asserts what is bounded."""
    lines = []
    agent = psutil.Process(cluster.pid("r1"))
    with cluster.connect() as db:
        db.create_table("t", SCHEMA, sort_by=["k"], properties={"compaction": "off"})
        for begin in range(0, ROWS, ROWS // 4):
            db.insert("t", batches(begin, begin + ROWS // 4, 1))
        for name, statement in statements.items():
            sampler = Sampler(agent)
            with db.begin() as tx:
                done = sampler.during(functools.partial(statement, tx))
                tx.rollback()
            used = {key: value // MIB for key, value in sampler.largest.items()}
            agents = f"agent {sampler.at_rest // MIB} -> {used['agent']} MiB"
            lines.append(f"{name}: {agents}, SQL process {used['sql']} MiB; {done}")
            assert sampler.largest["agent"] - sampler.at_rest < AGENT_GROWTH_BYTES
    return lines


def show(title: str, lines: list[str]) -> None:
    """Print what was sampled."""
    sys.stdout.write("\n".join(["", title, *lines, ""]))


@pytest.mark.slow
def test_a_table_larger_than_the_memory(
    module_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Update and delete of rows all over it, and an insert of as many."""
    size = ROWS * ROW_BYTES
    assert size >= 4 * MEMORY_BYTES
    cluster = module_cluster(replicas=1, settings=SETTINGS)
    lines = changed(
        cluster,
        {
            "update of all rows": lambda tx: tx.update("t", {"v": "v + 1", "s": "reverse(s)"}),
            "delete of half": lambda tx: tx.delete("t", "k % 2 = 0"),
            "insert select": lambda tx: tx.sql("insert into t select k + 2000000000, g, v, s from t"),
        },
    )
    with capsys.disabled():
        show(f"A table of {size // MIB} MiB, {MEMORY_BYTES // MIB} MiB for SQL", lines)


@pytest.mark.slow
def test_rows_larger_than_the_memory_of_a_join(
    module_cluster: ClusterFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Upsert and merge with as many rows as the table has: three times what the engine may use."""
    engine = int(JOIN_MEMORY_BYTES * JOIN_SHARE)
    assert 2.5 * engine < ROWS * ROW_BYTES
    limits = {"sql_memory_bytes": JOIN_MEMORY_BYTES, "sql_engine_share": JOIN_SHARE}
    cluster = module_cluster(replicas=1, settings=SETTINGS | limits)
    lines = changed(
        cluster,
        {
            "upsert": lambda tx: tx.upsert("t", batches(0, ROWS, 5), on=["k"]),
            "merge that deletes": lambda tx: tx.merge(
                "t",
                batches(0, ROWS, 0),
                on=["k"],
                when_matched_delete="target.v = ?",
                when_not_matched_insert=None,
                params=[1],
            ),
        },
    )
    with capsys.disabled():
        show(f"Source and table of {ROWS * ROW_BYTES // MIB} MiB, {engine // MIB} MiB for joins", lines)
