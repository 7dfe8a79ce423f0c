"""Changes, change feed and compaction of a table that is larger than the memory of a SQL process.

The memory of the agent and the process is sampled, printed and bounded. Settings make the limits small, so
that the table can be small too.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.support.clusters.cluster import ClusterFactory
from tidelock.client import Changes, Transaction
from tidelock.cluster import LocalCluster

MIB = 1 << 20
#: Memory limit of one SQL process, besides its own code and stacks.
MEMORY_BYTES = 64 * MIB
ROWS = 4_800_000
BATCH_ROWS = 100_000
#: Characters of the text of a row; its other columns have 24 bytes.
NARROW, WIDE = 32, 200
ROW_BYTES = 24
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
#: A join keeps a block of each of up to 128 partitions of either side, so it needs more: a quarter of the
#: table, and a quarter of the rows that it is joined with.
JOIN_MEMORY_BYTES = 256 * MIB
#: How much the agent may grow: row groups that are written, and pieces that are sent.
AGENT_GROWTH_BYTES = 256 * MIB
#: Memory of an idle SQL process: code, libraries, stacks.
SQL_BYTES = 256 * MIB


def batches(begin: int, end: int, value: int, width: int = NARROW) -> pa.RecordBatchReader:
    """Yield rows of ROW_BYTES + `width` in Arrow with unordered keys, piece by piece."""

    def made() -> Iterator[pa.RecordBatch]:
        for first in range(begin, end, BATCH_ROWS):
            numbers = np.arange(first, min(first + BATCH_ROWS, end))
            keys = numbers * 2_654_435_761 % 1_000_000_007
            texts = pc.utf8_lpad(pa.array(keys).cast(pa.string()), width, "0")
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
        """Run a function while sampling; return its result."""
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(ended,))
        watching.start()
        try:
            return run()
        finally:
            ended.set()
            watching.join()

    def bounded(self, memory: int) -> str:
        """Return the samples as text; AssertionError if a process with this limit used more than it may."""
        used = {key: value // MIB for key, value in self.largest.items()}
        told = f"agent {self.at_rest // MIB} -> {used['agent']} MiB, SQL process {used['sql']} MiB"
        assert 0 < self.largest["sql"] < memory + SQL_BYTES, told
        assert self.largest["agent"] - self.at_rest < AGENT_GROWTH_BYTES, told
        return told

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


def changed(cluster: LocalCluster, statements: Statements, memory: int, width: int = NARROW) -> list[str]:
    """Run each statement on all rows, and roll it back; check the samples, and return them as text."""
    lines = []
    size = ROWS * (ROW_BYTES + width)
    assert size >= 4 * memory
    agent = psutil.Process(cluster.pid("r1"))
    with cluster.connect() as db:
        db.create_table("t", SCHEMA, sort_by=["k"], properties={"compaction": "off"})
        for begin in range(0, ROWS, ROWS // 4):
            db.insert("t", batches(begin, begin + ROWS // 4, 1, width))
        for name, statement in statements.items():
            sampler = Sampler(agent)
            with db.begin() as tx:
                done = sampler.during(functools.partial(statement, tx))
                tx.rollback()
            lines.append(f"{name}: {sampler.bounded(memory)}; {done}")
    return [f"a table of {size // MIB} MiB, {memory // MIB} MiB for SQL", *lines]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], None]:
    """Print the samples."""

    def write(lines: list[str]) -> None:
        with capsys.disabled():
            sys.stdout.write("\n".join(["", *lines, ""]))

    return write


Show = Callable[[list[str]], None]


@pytest.mark.slow
def test_a_table_larger_than_the_memory(module_cluster: ClusterFactory, show: Show) -> None:
    """Update and delete of rows in every part, and an insert of as many rows."""
    cluster = module_cluster(replicas=1, executed=True, settings=SETTINGS)
    statements: Statements = {
        "update of all rows": lambda tx: tx.update("t", {"v": "v + 1", "s": "reverse(s)"}),
        "delete of half": lambda tx: tx.delete("t", "k % 2 = 0"),
        "insert select": lambda tx: tx.sql("insert into t select k + 2000000000, g, v, s from t"),
    }
    show(changed(cluster, statements, MEMORY_BYTES))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_larger_than_the_memory_of_a_join(module_cluster: ClusterFactory, show: Show) -> None:
    """Upsert and merge with as many rows as the table has."""
    limits = {"sql_memory_bytes": JOIN_MEMORY_BYTES, "sql_temp_bytes": 16 << 30, "sql_timeout_s": 1200}
    cluster = module_cluster(replicas=1, executed=True, settings=SETTINGS | limits)
    statements: Statements = {
        "upsert": lambda tx: tx.upsert("t", batches(0, ROWS, 5, WIDE), on=["k"]),
        "merge that deletes": lambda tx: tx.merge(
            "t",
            batches(0, ROWS, 0, WIDE),
            on=["k"],
            when_matched_delete="target.v = ?",
            when_not_matched_insert=None,
            params=[1],
        ),
    }
    show(changed(cluster, statements, JOIN_MEMORY_BYTES, WIDE))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_changes_larger_than_the_memory(module_cluster: ClusterFactory, show: Show) -> None:
    """The change feed of a commit that changes one row in a hundred, in every part, and of the inserts.

    The rows of both sides are counted in partitions that are spilled; the engine holds a block of each.
    """
    memory = 2 * MEMORY_BYTES
    limits = {"sql_memory_bytes": memory, "sql_timeout_s": 1200}
    cluster = module_cluster(replicas=1, executed=True, settings=SETTINGS | limits)
    size = 2 * ROWS * (ROW_BYTES + NARROW)  # before and after
    assert size >= 4 * memory
    sampler = Sampler(psutil.Process(cluster.pid("r1")))
    with cluster.connect() as db:
        start = db.create_table("t", SCHEMA, sort_by=["k"], properties={"compaction": "off"})["csn"]
        for begin in range(0, ROWS, ROWS // 4):
            db.insert("t", batches(begin, begin + ROWS // 4, 1))
        inserted = db.seen_csn
        db.update("t", {"v": "v + 1"}, "g = 7")
        for since, until, expected in (
            (start, inserted, {"insert": ROWS}),
            (inserted, db.seen_csn, {"delete": ROWS // 100, "insert": ROWS // 100}),
        ):
            told = sampler.during(functools.partial(_kinds, db.changes("t", since, until)))
            assert told == expected
    show([f"changes among {size // MIB} MiB, {memory // MIB} MiB for SQL", sampler.bounded(memory)])


def _kinds(feed: Changes) -> dict[str, int]:
    """Return the number of rows of each kind."""
    found: Counter[str] = Counter()
    for batch in feed.to_batches():
        for count in pc.value_counts(batch["_change_type"]).to_pylist():
            found[count["values"]] += count["counts"]
    return dict(found)


#: A compaction: its parts, the rows of a part, its columns of 8 bytes, which cannot be compressed.
PARTS, PART_ROWS, COLUMNS = 24, 70_000, 40
#: Reading needs a buffer, a page and a batch for each column.
WIDE_MEMORY_BYTES = 128 * MIB


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_compaction_in_little_memory(module_cluster: ClusterFactory, show: Show) -> None:
    """A merge of wide parts, together four times the memory, into an order that differs from each part's."""
    size = PARTS * PART_ROWS * COLUMNS * 8
    assert size >= 4 * WIDE_MEMORY_BYTES
    limits = {
        "sql_memory_bytes": WIDE_MEMORY_BYTES,
        "sql_timeout_s": 1200,
        "compaction_bytes_max": 4 << 30,
        "compaction_target_bytes": 1 << 30,
        "compaction": False,
    }
    cluster = module_cluster(replicas=1, executed=True, settings=SETTINGS | limits)
    names = [f"c{number}" for number in range(COLUMNS)]
    schema = pa.schema([(name, pa.int64()) for name in names])
    whole = f"select count(*), sum(hash({', '.join(names)})) from w"
    chosen = np.random.default_rng(1)
    with cluster.connect() as db:
        db.create_table("w", schema, sort_by=["c1"])
        for _ in range(PARTS):
            columns = chosen.integers(-(1 << 62), 1 << 62, (COLUMNS, PART_ROWS))
            db.insert("w", pa.table(list(columns), schema))
        with db.snapshot() as before:
            rows = before.sql(whole)
        sampler = Sampler(psutil.Process(cluster.pid("r1")))
        done = sampler.during(lambda: db.optimize("w", timeout_s=1200))
        assert (done["groups"], done["parts_before"], done["parts_after"]) == (1, PARTS, 1)
        assert done["bytes"] >= size // 2
        show(
            [
                f"compaction of {size // MIB} MiB, {WIDE_MEMORY_BYTES // MIB} MiB for SQL",
                sampler.bounded(WIDE_MEMORY_BYTES),
            ]
        )
        with db.snapshot() as after:
            assert after.sql(whole) == rows
        ordered = db.read("w", columns=["c1"])["c1"]
        assert ordered.to_pylist() == sorted(ordered.to_pylist())
