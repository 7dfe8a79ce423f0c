"""The class that PySpark makes for the format `tidelock`: what a user sees of an error."""

from __future__ import annotations

import traceback

import pytest

from tests.support.replicas.fake_agent import FakeCluster
from tidelock.errors import UnknownTableError
from tidelock.spark.source.source import TidelockSource


def test_an_error_of_a_read_shows_no_inside_of_the_client(fake_cluster: FakeCluster) -> None:
    """PySpark prints the whole traceback, with all causes, above the one line that helps."""
    source = TidelockSource({"url": fake_cluster["r1"].url, "table": "nowhere"})
    with pytest.raises(UnknownTableError) as caught:
        source.schema()
    shown = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert shown[-1] == "schema"
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None
