"""A table under drawn changes of all kinds: each reader sees it as it was at a CSN, whichever way it reads.

Rows, definitions, restores, clones, imported files and tags are drawn, beside kills of replicas and a lost
disk. What the client, SQL, plain readers of files, Spark, exports, differences and subscriptions show at
drawn CSNs is compared with a model.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.clusters.agreeing import agreeing
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.disks import lose_disk
from tests.support.clusters.drawn_tables import TABLE, DrawnTable
from tests.support.clusters.shown_tables import Model, require_shown
from tests.support.histories.evidence import require_clean_audit
from tests.support.spark.process import SparkProcess
from tidelock.client import Database, Rows
from tidelock.cluster import LocalCluster

_GONE = {"delete", "update_preimage"}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> Iterator[LocalCluster]:
    """Three replicas, which cut nearly every part, and agree at the end, with nothing left over."""
    yield from agreeing(
        module_cluster(replicas=3, settings=QUICK | {"cut_part_bytes_min": 1, "row_group_rows": 4})
    )


@pytest.mark.scenario("S05")
@pytest.mark.slow
def test_every_reader_sees_what_was_drawn(
    local: LocalCluster, dbs: list[Database], fresh_seed: int, tmp_path: Path
) -> None:
    """At drawn CSNs and at all tags, on every replica, after kills and after a clone."""
    table = drawn(local, dbs, DrawnTable(fresh_seed, tmp_path), steps=36)
    for replica in local.replicas:
        for csn in [max(table.at), *table.drawn.sample(sorted(table.at), 4)]:
            require_shown(local, replica, csn, TABLE, table.at[csn])
        for tag, csn in table.tags.items():
            require_shown(local, replica, tag, TABLE, table.at[csn])
    for db in dbs:
        require_difference(db, table, *table.later())
        require_subscription(db, table, *table.later())
    require_exported(dbs[0], table, tmp_path / "exported")
    end_tags(dbs[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(3))
def test_spark_and_feeds_see_what_was_drawn(
    local: LocalCluster, dbs: list[Database], fresh_seed: int, number: int, tmp_path: Path
) -> None:
    """A longer life of a table, read by Spark at its CSNs and tags, and told by differences and feeds."""
    table = drawn(local, dbs, DrawnTable(fresh_seed + number, tmp_path), steps=80)
    require_exported(dbs[0], table, tmp_path / "exported")
    for db in dbs:
        for _ in range(15):
            require_difference(db, table, *table.later())
            require_subscription(db, table, *table.later())
    points: list[int | str] = [*table.drawn.sample(sorted(table.at), 12), max(table.at), *table.tags]
    with SparkProcess("classic", tmp_path, python_workers=True) as spark:
        for point in points:
            spark.call("join", url=local.url(table.drawn.choice(local.replicas)))
            spark.call("attach", csn=point)
            require_in_spark(spark, table.at_point(point))
        spark.call("detach")
    end_tags(dbs[0])


def drawn(local: LocalCluster, dbs: list[Database], table: DrawnTable, *, steps: int) -> DrawnTable:
    """Draw the life of a table; all replicas have all of it at the end, one of them with an empty disk."""
    table.create(dbs[0])
    for number in range(steps):
        if number % 12 == 9:
            down = table.drawn.choice(local.replicas)
            local.kill(down, signal.SIGKILL)
            local.start(down)
        table.step(table.drawn.choice(dbs))
    lose_disk(local, "r3")
    local.start("r3")
    for db in dbs:
        db.snapshot(min_csn=max(table.at)).close()
    require_clean_audit(local)  # with the table: the audit at the end finds none any more
    return table


def end_tags(db: Database) -> None:
    """End all tags: the next table does not know them."""
    for tag in db.tags():
        db.untag(tag.name)
    assert not db.tags()


def require_in_spark(spark: SparkProcess, model: Model) -> None:
    """Compare names, types and rows of the attached table, in Spark's SQL, with the model."""
    names, rows = model.shown()
    assert spark.call("schema", table=TABLE) == [[name, kind] for _, name, kind in model.columns]
    shown = ", ".join(
        f"cast(`{name}` as string)" if kind.startswith("decimal") else f"`{name}`"
        for _, name, kind in model.columns
    )
    found = [
        tuple(
            Decimal(value) if kind.startswith("decimal") and value is not None else value
            for value, (*_, kind) in zip(row, model.columns, strict=True)
        )
        for row in spark.sql(f"select {shown} from {TABLE}")
    ]
    assert Counter(found) == Counter(rows), names


def require_exported(db: Database, table: DrawnTable, folder: Path) -> None:
    """Compare the exports of the table at drawn CSNs, as DuckDB reads their folders, with the model."""
    for csn in table.drawn.sample(sorted(table.at), 2):
        names, rows = table.at[csn].shown()
        done = db.export(TABLE, folder / str(csn), csn=csn)
        assert done.rows == len(rows)
        if not rows:
            continue
        columns = ", ".join(f'"{name}"' for name in names)
        files = f"read_parquet('{folder / str(csn)}/**/*.parquet', hive_partitioning = true)"
        found = duckdb.execute(f"select {columns} from {files}").fetchall()
        assert Counter(found) == Counter(rows)


def require_difference(db: Database, table: DrawnTable, first: int, second: int) -> None:
    """Compare the difference of two snapshots with those of the model."""
    begin, end = table.at[first], table.at[second]
    ids = [column for column, *_ in end.columns]
    there = {column for column, *_ in begin.columns}
    known = {column for csn, model in table.at.items() if csn <= first for column, *_ in model.columns}
    if (known & {*ids}) - there:
        return  # a column that was away came back: a file of the time between has none, or has it hidden
    state = Counter(tuple(row.get(column) for column in ids) for row in begin.rows)
    names = [name for _, name, _ in end.columns]
    for row in db.diff(TABLE, first, second).to_table().to_pylist():
        change = -1 if row["_change_type"] in _GONE else 1
        state[tuple(row[name] for name in names)] += change
    assert min(state.values(), default=0) >= 0, (first, second)
    assert +state == Counter(end.shown()[1]), (first, second)


def require_subscription(db: Database, table: DrawnTable, first: int, second: int) -> None:
    """Compare what a subscription has told at each progress with the model, while the columns stay."""
    columns = table.at[first].columns
    if any(model.columns != columns for csn, model in table.at.items() if first <= csn <= second):
        return
    state: Counter[tuple[Any, ...]] = Counter()
    names = [name for _, name, _ in columns]
    last = 0
    with db.subscribe(TABLE, first, until=second) as feed:
        for message in feed:
            if isinstance(message, Rows):
                for row in message.to_table().to_pylist():
                    change = -1 if row["_change_type"] in _GONE else 1
                    state[tuple(row[name] for name in names)] += change
                    assert change > 0 or state[tuple(row[name] for name in names)] >= 0
            else:
                last = message.csn
                at = max(csn for csn in table.at if csn <= last)
                assert +state == Counter(table.at[at].shown()[1]), (first, second, last)
    assert last == second
