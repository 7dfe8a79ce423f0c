"""docs/spark-settings.md names every setting that the helpers make, and agrees with what they make of it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.support.project.source import ROOT
from tidelock import job_options, token_text
from tidelock import read_route as options
from tidelock.replica_agent.readers import signs
from tidelock.spark import writing

PAGE: Final = (ROOT / "docs" / "spark-settings.md").read_text(encoding="utf-8")
NAMED: Final = {
    name.removeprefix("spark.hadoop.").lower() for name in re.findall(r"`([A-Za-z][\w.-]+)(?:=[^`]*)?`", PAGE)
}
#: Reader options that are settings of a session under another name.
AS_SETTINGS: Final = {
    "ignoremissingfiles": "spark.sql.files.ignoremissingfiles",
    "ignorecorruptfiles": "spark.sql.files.ignorecorruptfiles",
    "mergeschema": "spark.sql.parquet.mergeschema",
    "datetimerebasemode": "spark.sql.parquet.datetimerebasemodeinread",
}


@pytest.mark.parametrize("option", options.READER_OPTIONS)
def test_options_of_readers_have_their_lines(option: str) -> None:
    """Each has its line, by the name of the setting."""
    assert AS_SETTINGS.get(option, option) in NAMED


@pytest.mark.parametrize(
    "setting", [*job_options.SESSION, *job_options.OPTIONS, *writing.WRITER_SETTINGS["append"].options]
)
def test_settings_of_writers_have_their_lines(setting: str) -> None:
    """Each has its line."""
    assert setting.lower() in NAMED


def test_the_values_are_those_of_the_helpers() -> None:
    """The helpers set the values that the page requires."""
    assert "| `spark.sql.parquet.outputTimestampType` | `TIMESTAMP_MICROS`" in PAGE
    assert job_options.SESSION["spark.sql.parquet.outputTimestampType"] == "TIMESTAMP_MICROS"
    assert job_options.SESSION["spark.sql.parquet.datetimeRebaseModeInWrite"] != "LEGACY"
    assert job_options.OPTIONS["mapreduce.fileoutputcommitter.algorithm.version"] == "1"
    assert f"`{options.SILENCE_S * 1000:.0f}ms` both" in PAGE
    assert f"with one replica `{options.LONE_CONNECT_S:.0f}s`" in PAGE
    assert f"{options.LONE_READ_MARGIN_S:.0f} s more than its `read_wait_s`" in PAGE
    text = " ".join(PAGE.split())
    assert f"says so every {signs.SIGN_S} s" in text
    assert f"stalls for {2 * options.SILENCE_S} s at most" in text
    assert f"`{token_text.PATTERN}`" in PAGE
