"""A Spark session like that of a user's laptop: `local[2]`, without any setting for Tidelock."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelock import java
from tidelock.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[2]"
#: JVM options of a session that lives for minutes: the second compiler costs more than it saves (35 s of two
#: cores in the demo, measured). Not for timed runs.
QUICK_START: Final = "-XX:TieredStopAtLevel=1"

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
        raise ConfigError("this needs PySpark; `pip install 'tidelock[spark]'`")


@contextmanager
def session(
    folder: Path, *, app: str, settings: Mapping[str, str] | None = None, jvm: str = ""
) -> Iterator[SparkSession]:
    """A session that logs into `folder/spark.log` and keeps its files there.

    ConfigError when no Java works.

    Args:
        folder: Made when it is not there.
        app: Its name.
        settings: More settings of Spark.
        jvm: More options of its JVM, which all sessions of a process share: those of the first one hold.
    """
    # Not at the top: `--help` and a user without Spark do not need these modules.
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find(), folder))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = SparkConf().setAll(list((_settings(folder, app, jvm) | dict(settings or {})).items()))
    gateway = SparkContext._gateway  # noqa: SLF001 - there is no public way to the JVM of this process
    if gateway is None:
        with (folder / "spark.out").open("ab") as output:
            # Otherwise the output of Java before its log is set up would appear among the caller's lines.
            launch: Any = launch_gateway
            gateway = launch(conf, popen_kwargs={"stdout": output, "stderr": output})
    interrupt = signal.getsignal(signal.SIGINT)
    spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
    # Spark's own handler of Ctrl-C calls the JVM in the middle of another call; then nothing ends in order.
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield spark
    except BaseException:
        # The error may have cut the connection to the JVM, which ends with this process anyway.
        with suppress(Exception):
            spark.stop()
        raise
    spark.stop()


def _settings(folder: Path, app: str, jvm: str) -> dict[str, str]:
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING.format(log=folder / "spark.log"), encoding="utf-8")
    return {
        "spark.master": MASTER,
        "spark.app.name": app,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()} {jvm}",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Four, for two cores: the default of 200 suits a cluster.
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
