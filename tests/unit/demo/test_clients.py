"""The client processes of the demo, as real processes, against agents that are doubles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.client_process import Setup
from demo.clients import ClientProcesses
from demo.failure import DemoError
from tests.support.replicas.fake_agent import FakeCluster
from tests.support.waiting import eventually
from workloads.history import CallEnd, Write, load
from workloads.tpch.tables import LINEITEM, ORDERS


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two agents with the tables that writers fill."""
    with FakeCluster("r1", "r2") as cluster:
        for table in (ORDERS, LINEITEM):
            cluster.add_table(table.name, table.schema.empty_table())
        yield cluster


def clients_of(cluster: FakeCluster, folder: Path) -> ClientProcesses:
    """Return clients with one process for each agent."""
    urls = [agent.url for agent in cluster.agents.values()]
    keys = {"last_loaded": 100, "writers": 8, "orders": 10}
    return ClientProcesses(
        [
            Setup(urls, replica, str(folder / "history.jsonl"), 0.01, keys, None, 60.0)
            for replica in cluster.agents
        ],
        folder,
    )


def acknowledged(folder: Path) -> list[Write]:
    """Return the orders whose commits were acknowledged."""
    return load(folder / "history.jsonl").ended(CallEnd.OK)


def homes_of(writes: list[Write]) -> dict[int, str]:
    """Return the home of each writer, by its number."""
    return {(int(write.key) - 101) // 10 % 8: str(write.tid).split("-")[1] for write in writes}


def test_writers_write_until_they_rest(cluster: FakeCluster, tmp_path: Path) -> None:
    """Each writer writes to the replica of its process; the history has all commits, none after the rest."""
    with clients_of(cluster, tmp_path) as clients:
        clients.start(4, interval_s=0.01, calm_after_s=60.0, calm_interval_s=0.01)
        eventually(lambda: clients.commits >= 12)
        eventually(lambda: len(homes_of(acknowledged(tmp_path))) == 4, what="a commit of each writer")
        clients.rest()
        commits = clients.commits
    told = acknowledged(tmp_path)
    csns = {write.tid: write.csn for write in told}
    assert csns == cluster.outcomes
    assert len(csns) == commits
    assert homes_of(told) == {0: "r1", 1: "r2", 2: "r1", 3: "r2"}


def test_a_burst_commits_exactly_what_it_is_told(cluster: FakeCluster, tmp_path: Path) -> None:
    """Batches that cannot be shared evenly are all committed, on the one replica."""
    with clients_of(cluster, tmp_path) as clients:
        clients.burst("r2", 4, 4, 10)
    told = acknowledged(tmp_path)
    assert len({write.tid for write in told}) == 10
    assert {str(write.tid).split("-")[1] for write in told} == {"r2"}
    assert len({write.key for write in told}) == 100


def test_a_wave_commits_together(cluster: FakeCluster, tmp_path: Path) -> None:
    """All batches of a wave are staged before the first of them is committed.

    A writer whose commit was quick may stage a batch of the next wave before the last commit of this one.
    """
    with clients_of(cluster, tmp_path) as clients:
        clients.burst("r1", 4, 4, 6)
    verbs = [request.path.rpartition("/")[2] for request in cluster["r1"].requests]
    steps = ["commit" if verb == "commit" else "row" for verb in verbs if verb in {"commit", "lineitem"}]
    staged = [steps[:place].count("row") for place, step in enumerate(steps) if step == "commit"]
    assert staged[0] >= 4
    assert staged[4:] == [6, 6]
    assert len(staged) == 6


def test_a_process_that_fails_is_told_with_its_last_words(cluster: FakeCluster, tmp_path: Path) -> None:
    """An error that would come again ends the writer's process, and the demo reports the reason."""
    del cluster.definitions["default.lineitem"]
    with clients_of(cluster, tmp_path) as clients, pytest.raises(DemoError, match="there is no table"):
        clients.burst("r1", 0, 1, 1)
