"""Random histories of all statements, by sessions on three replicas, compared with a model in memory.

A plan is drawn from a seed (tests/support/histories/session_plan.py) and carried out
(tests/support/histories/sessions.py) while compaction runs as fast as it can and replicas are killed. Then
every commit is replayed in the order of the log (tests/support/histories/replay.py). Each answer to a session
must agree with the model: rows, numbers of rows, conflicts, outcomes. At the end all replicas show the same
rows, and nothing is left over.

A failure prints the command that draws the same plan again. If the sessions run one after the other, their
statements interleave in the same way too; the background tasks of the cluster do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tests.support.histories.session_plan import draw
from tests.support.histories.sessions import Stage
from tidelock.cluster import LocalCluster

#: Compaction merges all parts that it can, as soon as it can.
EAGER = {
    **QUICK,
    "compaction_interval_s": 0.2,
    "compaction_parts_min": 2,
    "compaction_quiet_s": 0.2,
    "compaction_retry_wait_max_s": 0.2,
}
NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def shared(module_cluster: ClusterFactory) -> LocalCluster:
    """One cluster for the module."""
    return module_cluster(settings=EAGER, epoch_limit=1000)


@pytest.fixture
def local(shared: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, with all replicas up before and after the test."""
    shared.up()
    yield shared
    shared.up()


def play(
    local: LocalCluster,
    folder: Path,
    seed: int,
    *,
    steps: int,
    faults: int,
    at_once: bool,
) -> None:
    """Draw a plan, carry it out, and check the answers."""
    with Stage(local, f"h{next(NUMBERS)}", collected=False) as stage:
        plan = draw(
            seed,
            steps,
            tables=stage.story.tables,
            replicas=local.replicas,
            sessions=6 if at_once else 4,
            faults=faults,
        )
        try:
            (stage.play_at_once if at_once else stage.play)(plan)
            stage.judge(commits=steps // 25)
        except BaseException as error:
            stage.tell(folder / "story.txt")
            error.add_note(f"the story is in {folder / 'story.txt'}")
            raise


def test_a_short_history_is_what_the_model_says(local: LocalCluster, tmp_path: Path, fresh_seed: int) -> None:
    """A history of some seconds, with one replica that is killed and comes back."""
    play(local, tmp_path, fresh_seed, steps=80, faults=1, at_once=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("at_once", [False, True], ids=["in_turn", "at_once"])
@pytest.mark.parametrize("number", range(3))
def test_a_long_history_is_what_the_model_says(
    local: LocalCluster, tmp_path: Path, fresh_seed: int, number: int, at_once: bool
) -> None:
    """A history of half a minute, with several faults."""
    play(local, tmp_path, fresh_seed, steps=500, faults=4, at_once=at_once)
