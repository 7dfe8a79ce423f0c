"""A Spark session as a user has it on a laptop: `local[2]`, and nothing set that has to do with Tidelock."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelock import java
from tidelock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2]"

_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


def require() -> None:
    """Raise ConfigError when PySpark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("the demo needs PySpark; `pip install 'tidelock[spark]'`")


@contextmanager
def session(folder: Path) -> Iterator[SparkSession]:
    """A session that logs into `folder/spark.log` and keeps its files there.

    ConfigError when no Java works.
    """
    # Not at the top: `tidelock demo --help` and a user without Spark need none of it.
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find(), folder))
    conf = SparkConf().setAll(list(_settings(folder).items()))
    with (folder / "spark.out").open("ab") as output:
        # What Java says before its log is set up would otherwise stand between the demo's lines.
        launch: Any = launch_gateway
        gateway = launch(conf, popen_kwargs={"stdout": output, "stderr": output})
    interrupt = signal.getsignal(signal.SIGINT)
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    # Spark's own handler of Ctrl-C calls the JVM in the middle of another call; then nothing ends in order.
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield spark
    except BaseException:
        # What ended the block may have cut the connection to the JVM, which ends with this process anyway.
        with suppress(Exception):
            spark.stop()
        raise
    spark.stop()


def _settings(folder: Path) -> Mapping[str, str]:
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING.format(log=folder / "spark.log"), encoding="utf-8")
    return {
        "spark.master": MASTER,
        "spark.app.name": "tidelock demo",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={logging.as_uri()} "
            # In a life of minutes the second compiler costs more than it wins (35 s of two cores, measured).
            "-XX:TieredStopAtLevel=1"
        ),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Four, for two cores: the default of 200 suits a cluster.
        "spark.sql.shuffle.partitions": "4",
        # More and shorter tasks than by default, so that a replica can be killed between two of them.
        "spark.sql.files.maxPartitionBytes": "64m",
        # Each commit leaves a small part, and to look for pages in it takes longer than to read all of it.
        "spark.hadoop.parquet.filter.columnindex.enabled": "false",
        # The status tracker tells of every task at once.
        "spark.ui.liveUpdate.period": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
