"""The surroundings of every example: its arguments, a cluster, tables, and a Spark session."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import tidelock
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import TableExistsError
from workloads.spark_session import QUICK_START
from workloads.spark_session import session as spark_session


def url_of(arguments: Sequence[str] | None, about: str | None) -> str | None:
    """Return the address of the cluster to work with; None if a new one is to be made."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", help="address of an agent (http://host:port); default: a cluster of its own, gone afterwards"
    )
    found: str | None = parser.parse_args(arguments).url
    return found


@contextmanager
def database(url: str | None) -> Iterator[Database]:
    """Connect to a cluster, or to a new one of two replicas that is deleted afterwards."""
    if url is not None:
        with tidelock.connect(url, token=os.environ.get("TIDELOCK_SECRET")) as db:
            yield db
        return
    with (
        tempfile.TemporaryDirectory(prefix="tidelock-example-") as folder,
        LocalCluster.create(Path(folder), replicas=2) as cluster,
        cluster.connect() as db,
    ):
        yield db


@contextmanager
def session() -> Iterator[SparkSession]:
    """Return the existing session, as in a notebook or under spark-submit, or a new one for the example."""
    if (found := SparkSession.getActiveSession()) is not None:
        yield found
        return
    with (
        tempfile.TemporaryDirectory(prefix="tidelock-example-spark-") as folder,
        spark_session(Path(folder), app="tidelock example", jvm=QUICK_START) as spark,
    ):
        yield spark


def ensure_table(db: Database, name: str, schema: pa.Schema, **layout: Any) -> None:
    """Create a table unless an earlier run has."""
    with suppress(TableExistsError):
        db.create_table(name, schema, **layout)
