"""TPC-H data for tests: generated once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workloads.tpch.data import TpchRows, generate

#: 15,000 orders.
SCALE_FACTOR = 0.01


@pytest.fixture(scope="session")
def tpch_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TpchRows]:
    """The eight generated tables."""
    folder = tmp_path_factory.mktemp("tpch")
    generate(folder, SCALE_FACTOR)
    with TpchRows(folder) as source:
        yield source
