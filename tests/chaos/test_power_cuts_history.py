"""Power cuts in the middle of a compaction and of a garbage collection, at each of their fault points.

As in test_power_cuts.py the replica comes back from its platter; before it starts, the claims of its catalog
are compared with the bytes there. Then each CSN has its rows on every replica, the work is done again, and
the product's audit, which reads all bytes, finds nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
import urllib3

from tests.chaos.cut_points import OF_COLLECT, OF_COMPACTION
from tests.chaos.dark import World, world_of
from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.clusters.lock_reading import part_rows
from tests.support.faults.lab import points, undo_rows
from tests.support.faults.refusals import http
from tests.support.histories.evidence import nothing_left, require_clean_audit
from tests.support.histories.table_model import float_of, require_floats
from tests.support.waiting import eventually
from tidelock.client import Database
from tidelock.cluster import LocalCluster
from tidelock.errors import SnapshotTooOldError
from workloads.agents import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VICTIM: Final = "r1"
#: Each point of a garbage collection, and the catalog's write after it, which deletes the rows, or the notes
#: of deleted files.
OF_COLLECTION: Final = [
    *((None, point) for point in OF_COLLECT),
    *itertools.product(OF_COLLECT, points(["agent.catalog"])),
]
SCHEMA: Final = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("f", pa.float64())])
#: Rows of parts that share a pack, and of parts that are files of their own.
SMALL: Final = (3, 5, 7)
SIZES: Final = (3, 6000, 5, 6000, 7, 6000)
SETTINGS: Final = {
    **QUICK,
    "sql_workers": 1,
    "compaction": False,
    "inline_part_bytes_max": 16 * 1024,
    "horizon_interval_s": 0.2,
    "lock_sweep_interval_s": 0.5,
    "clean_interval_s": 0.5,
    "collect_batch_parts": 3,
    "retry_wait_max_s": 0.2,
}
NUMBERS = itertools.count(1)

Rows = list[tuple[int, int]]


@pytest.fixture(scope="module")
def world(module_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for the module; nothing is left over at its end."""
    folder, passed = tmp_path_factory.mktemp("dark"), [*OF_COMPACTION, *OF_COLLECT]
    with world_of(module_cluster, folder, VICTIM, passed, SETTINGS) as found:
        yield found


@pytest.fixture
def local(world: World) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test."""
    world.cluster.up()
    yield world.cluster
    world.cluster.up()


def rows(seed: int, count: int) -> pa.Table:
    """Return rows that cannot be compressed; the key decides the float."""
    chosen = random.Random(seed)
    keys, values = ([chosen.getrandbits(60) for _ in range(count)] for _ in range(2))
    return pa.table([keys, values, list(map(float_of, keys))], SCHEMA)


def fill(db: Database, sizes: Sequence[int] = SIZES) -> tuple[str, dict[int, Rows]]:
    """Make a table of parts of both kinds; return the rows at each CSN."""
    table = f"t{next(NUMBERS)}"
    expected: dict[int, Rows] = {}
    found: Rows = []
    db.create_table(table, SCHEMA, sort_by=["k"])
    for number, count in enumerate(sizes):
        more = rows(number, count)
        found = found + _pairs(more)
        csn = db.insert(table, more, wait="all").csn
        assert csn is not None
        expected[csn] = sorted(found)
    return table, expected


def _pairs(found: pa.Table) -> Rows:
    keys, values, floats = (found[name].to_pylist() for name in SCHEMA.names)
    require_floats(floats, keys)
    return list(zip(keys, values, strict=True))


def require_rows(local: LocalCluster, table: str, expected: dict[int, Rows]) -> None:
    """Require that every replica shows the rows of each CSN, and the last ones at the end of the log."""
    for replica in local.replicas:
        with (
            local.connect(replica) as db,
            db.snapshot(min_csn=ask(local, "r2", "/status")["end_csn"]) as newest,
        ):
            for csn, wanted in {**expected, newest.csn: expected[max(expected)]}.items():
                with db.snapshot(csn=csn) as snapshot:
                    assert sorted(_pairs(snapshot.read(table))) == wanted, (replica, csn)


def settled(local: LocalCluster) -> None:
    """Require that nothing is left over on any replica."""
    for replica in local.replicas:
        nothing_left(local.data_dir(replica))
        eventually(partial(undone, local.data_dir(replica)), what=f"no undo rows on {replica}")
    require_clean_audit(local)


def undone(data_dir: Path) -> bool:
    """Return whether no note of a file to delete is left."""
    return not undo_rows(data_dir)


def one_part(data_dir: Path, table: str) -> bool:
    """Return whether a replica has one part of a table only."""
    return len(part_rows(data_dir, table)) == 1


@pytest.mark.parametrize("point", OF_COMPACTION)
def test_a_power_cut_in_a_compaction_leaves_all_rows(world: World, local: LocalCluster, point: str) -> None:
    """The compaction is committed or not; the rows are the same, and missing work is done later."""
    with local.connect("r2") as db:
        table, expected = fill(db, SMALL if "pack" in point else SIZES)
        settled(local)
        hits = world.gates.hits(VICTIM, point)
        with world.gates.open(VICTIM, point), world.dark(lambda: optimize(local, table)):
            world.gates.await_hit(VICTIM, point, after=hits)
        local.start(VICTIM)
        require_rows(local, table, expected)
        settled(local)
        with local.connect(VICTIM) as again:
            assert again.optimize(table)["parts_after"] == 1
        require_rows(local, table, expected)
        settled(local)


def optimize(local: LocalCluster, table: str) -> None:
    """Ask the victim for a merge, during which it dies."""
    url = f"{local.url(VICTIM)}/api/v1/admin/optimize"
    with contextlib.suppress(urllib3.exceptions.HTTPError):
        http("POST", url, {"table": table})


@pytest.mark.scenario("S74")
@pytest.mark.parametrize(("behind", "point"), OF_COLLECTION)
def test_a_power_cut_in_a_collection_leaves_kept_files_whole(
    world: World, local: LocalCluster, behind: str | None, point: str
) -> None:
    """Snapshots that were given up disappear on all replicas; the others stay whole."""
    with local.connect("r2") as db:
        table, expected = fill(db)
        kept = expected[max(expected)]
        assert db.optimize(table)["parts_after"] == 1  # removes the other rows
        settled(local)
        gates = world.gates
        hits = gates.hits(VICTIM, point)
        with contextlib.ExitStack() as opened, world.dark(lambda: give_up(db, max(expected))):
            if behind is None:
                opened.enter_context(gates.open(VICTIM, point))
            else:
                before = gates.hits(VICTIM, behind)
                with gates.open(VICTIM, behind):
                    gates.await_hit(VICTIM, behind, after=before)
                    opened.enter_context(gates.open(VICTIM, point))
            gates.await_hit(VICTIM, point, after=hits)
        local.start(VICTIM)
        end = int(ask(local, "r2", "/status")["end_csn"])
        for replica in local.replicas:
            eventually(partial(one_part, local.data_dir(replica), table), what=f"collected on {replica}")
            with local.connect(replica) as reader, pytest.raises(SnapshotTooOldError):
                reader.snapshot(csn=max(expected))
        require_rows(local, table, {end: kept})
        settled(local)


def give_up(db: Database, csn: int) -> None:
    """Raise the horizon above a CSN, over the pins of all readers."""
    eventually(lambda: db.raise_horizon(drop_pins=True)["horizon"] > csn, what=f"a horizon above {csn}")
