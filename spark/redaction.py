"""Redaction of tokens in what Spark shows and records: plans in its user interface, event logs, explain()."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from tidelock.token_text import PATTERN

#: Runtime setting of a session: a regular expression whose matches are replaced in the texts of plans.
SETTING: Final = "spark.sql.redaction.string.regex"


def redact_tokens(spark: SparkSession) -> None:
    """Make a session hide tokens, besides what it hides already."""
    now = spark.conf.get(SETTING, None) or spark.conf.get("spark.redaction.string.regex", None)
    if not now:
        spark.conf.set(SETTING, PATTERN)
    elif PATTERN not in now:
        spark.conf.set(SETTING, f"{now}|{PATTERN}")
