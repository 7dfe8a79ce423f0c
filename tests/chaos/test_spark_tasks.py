"""Tasks of Spark that fail, are slow, die with their executor, or write on after the commit (issue 5).

Each test uses both ways to write: paths of `tl.write`, and the data source `tidelock`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from tests.support.clusters.cluster import ClusterFactory
from tests.support.spark import process
from tests.support.spark.lab import BASE, IDS, TASKS, SparkLab, Way, spark_laboratory
from tests.support.spark.process import SparkJobError, require_over

# A session may take minutes to start on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

#: Rows of one partition.
ONE_TOWN: Final = range(0, 4 * IDS.stop, 4)

#: Executors that the master starts again after their end, and that a test can freeze.
STANDALONE: Final[list[tuple[str, Way]]] = [("standalone", "path"), ("standalone", "source")]
#: Also the executors of the driver itself (local-cluster); the data source works the same there.
EVERYWHERE: Final[list[tuple[str, Way]]] = [("local-cluster", "path"), *STANDALONE]


def executors(pairs: list[tuple[str, Way]]) -> pytest.MarkDecorator:
    """Run a test with each pair of executors and a way to write; a laboratory is built once for all tests."""
    return pytest.mark.parametrize(("lab", "way"), pairs, indirect=["lab"], scope="module")


@pytest.fixture(scope="module")
def lab(
    request: pytest.FixtureRequest,
    module_cluster: ClusterFactory,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkLab]:
    """Two executors."""
    standalone = request.param == "standalone"
    with spark_laboratory(module_cluster, tmp_path_factory.mktemp("lab"), standalone=standalone) as lab:
        yield lab


@pytest.mark.scenario("S64")
@executors(EVERYWHERE)
@pytest.mark.parametrize(
    ("mode", "ids", "kept"),
    [
        ("append", IDS, BASE),
        ("overwrite", IDS, ()),
        ("overwrite_partitions", ONE_TOWN, [number for number in BASE if number % 4]),
    ],
)
def test_three_of_ten_attempts_fail(lab: SparkLab, way: Way, mode: str, ids: range, kept: range) -> None:
    """Attempts that raise or are killed amid their files leave nothing; a repetition adds no rows."""
    with lab.load(way, failing_percent=30) as load:
        load.send(ids=ids, mode=mode)
        csn = lab.spark.receive()
        killed, raised = len(load.met("killed")), len(load.met("raised"))
        assert min(killed, raised) > 0
        assert killed + raised >= 0.3 * (TASKS + killed + raised)
        load.require_rows(csn, [*kept, *ids])
        assert load.repeat(ids=ids, mode=mode) == csn
        load.require_rows(None, [*kept, *ids])


@pytest.mark.scenario("S64")
@executors(STANDALONE)
def test_slow_attempts_run_twice(lab: SparkLab, way: Way) -> None:
    """With speculation one of two attempts of a task counts, and the files of the other one do not."""
    with lab.load(way, slow=True) as load:
        load.send()
        csn = lab.spark.receive()
        assert load.met("slow")
        assert load.met("twice")
        load.require_once(csn)


@executors(EVERYWHERE)
def test_an_executor_dies_in_the_middle_of_its_files(lab: SparkLab, way: Way) -> None:
    """Another executor runs the tasks again; the files of the dead one do not count."""
    with lab.load(way, held=True) as load:
        with load.held(attempts=2):
            victim = lab.executors()[0]
            victim.kill()
            psutil.wait_procs([victim])
        load.require_once(lab.spark.receive())


@executors(STANDALONE)
def test_attempts_that_write_on_behind_the_commit(lab: SparkLab, way: Way) -> None:
    """An executor that was frozen goes on writing after others have done its tasks."""
    with lab.load(way, held=True) as load:
        with load.held(attempts=2):
            frozen = lab.executors()[0]
            process.freeze(frozen)
        try:
            csn = lab.spark.receive()
        finally:
            process.thaw(frozen)
        require_over(frozen)
        load.require_once(csn)


@executors(EVERYWHERE)
def test_attempts_that_write_on_behind_the_rollback(lab: SparkLab, way: Way) -> None:
    """As above, when the job has failed and its transaction was rolled back."""
    with lab.load(way, held=True, broken=5) as load:
        with load.held(attempts=2):
            frozen = lab.executors()[0]
            process.freeze(frozen)
        try:
            with pytest.raises(SparkJobError, match="task 5 cannot succeed"):
                lab.spark.receive()
        finally:
            process.thaw(frozen)
        require_over(frozen)
        load.require_nothing()
