"""Backfill: one day of a table is computed again and replaces the existing rows of that day.

The rows of the other days are not touched, and readers see the old day or the new one, never a mixture. The
label makes this piece of work take effect once: a second run, after a crash or by mistake, adds nothing and
reports the CSN of the first. Run the program twice with the same `--url`: the second run reports it at once.

    python -m examples.backfill_partition [--url http://host:port]
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

import tidelock.spark as tl
from examples.surroundings import database, ensure_table, session, url_of
from tidelock.client import Database
from tidelock.errors import LabelExistsError

READINGS: Final = pa.schema([("day", pa.date32()), ("sensor", pa.string()), ("celsius", pa.float64())])
DAILY: Final = pa.schema(
    [("day", pa.date32()), ("sensor", pa.string()), ("celsius", pa.float64()), ("readings", pa.int64())]
)
DAYS: Final = [dt.date(2026, 1, number) for number in (1, 2, 3)]


def seed(db: Database) -> None:
    """Three days of readings; the daily means were computed with a bug: in Fahrenheit."""
    ensure_table(db, "weather.readings", READINGS, partition_by=["day"])
    ensure_table(db, "weather.daily", DAILY, partition_by=["day"])
    readings = [
        {"day": day, "sensor": f"sensor {sensor}", "celsius": float(10 * sensor + hour)}
        for day in DAYS
        for sensor in (1, 2)
        for hour in range(24)
    ]
    try:
        with db.begin("seed the weather") as tx:
            tx.insert("weather.readings", pa.Table.from_pylist(readings, READINGS))
            tx.sql(
                "INSERT INTO weather.daily SELECT day, sensor, avg(celsius) * 1.8 + 32, count(*) "
                "FROM weather.readings GROUP BY ALL"
            )
    except LabelExistsError as error:
        print(f"the readings are there since CSN {error.details['csn']}")


def computed(spark: SparkSession, db: Database, day: dt.date) -> pa.Table:
    """Compute the means of a day with Spark, over a snapshot."""
    with tl.attach(spark, db, tables=["weather.readings"]) as snap:
        readings = tl.read(spark, snap, "weather.readings").where(f"day = DATE'{day}'")
        means = readings.groupBy("day", "sensor").agg({"celsius": "avg", "*": "count"})
        return means.toDF(*DAILY.names).toArrow()


def backfill(spark: SparkSession, db: Database, day: dt.date) -> int:
    """Replace one day of the daily means, once; returns the CSN at which that was done."""
    try:
        with db.begin(f"backfill weather.daily {day}") as tx:
            done = tx.replace_partition("weather.daily", {"day": day}, computed(spark, db, day))
            print(f"{day}: computed again, {done.rows} rows")
    except LabelExistsError as error:
        csn: int = error.details["csn"]
        print(f"{day}: was done before, by transaction {error.details['tid']} at CSN {csn}; nothing is added")
        return csn
    assert tx.csn is not None
    return tx.csn


def show(db: Database, csn: int | None = None) -> list[tuple[dt.date, float]]:
    """Print the mean of each day, now or at a CSN, and return them."""
    with db.snapshot(csn) as snap:
        rows = snap.sql(
            "SELECT day, round(avg(celsius), 1) AS mean, count(*) AS n "
            "FROM weather.daily GROUP BY day ORDER BY day"
        ).to_pylist()
        print(
            f"at CSN {snap.csn}: "
            + ", ".join(f"{row['day']} {row['mean']} ({row['n']} rows)" for row in rows)
        )
    return [(row["day"], row["mean"]) for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Backfill the middle one of three days, twice."""
    url = url_of(arguments, __doc__)
    with database(url) as db, session() as spark:
        seed(db)
        show(db)
        csn = backfill(spark, db, DAYS[1])
        means = show(db, csn)
        again = backfill(spark, db, DAYS[1])
        if again != csn or show(db) != means:
            raise RuntimeError("a repetition has changed something")


if __name__ == "__main__":
    main()
