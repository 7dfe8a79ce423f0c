"""`tidelock admin why-blocked`: one reason for each thing that may be held back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import typer

from tidelock.cli.trouble import reasons, resolve_lost


def replica(name: str, at: int, phase: str = "following", **more: Any) -> dict[str, Any]:
    """Return a replica of a status."""
    found = {"id": name, "alive": True, "snapshot_csn": at, "phase": phase, "blocked_by": None}
    return found | {"member": "serving"} | more


def status(**more: Any) -> dict[str, Any]:
    """Return the status of a shard in which r3 lacks a part."""
    blocked_by = {"csn": 8, "tid": "6-r1-1-1", "part": "r1-1-4"}
    found = {
        "end_csn": 12,
        "tail": 3,
        "horizon": 5,
        "copies": 2,
        "holding_back": {"csn": 6, "kind": "pin", "name": "r1-1-9"},
        "lost": [],
        "replicas": [
            replica("r1", 12),
            replica("r2", 11),
            replica("r3", 7, "blocked", blocked_by=blocked_by),
            replica("r4", 2, "full"),
            replica("r5", 1, "starting"),
            replica("r6", 0, alive=False),
        ],
    }
    return found | more


def test_each_replica_has_its_reason() -> None:
    """The screen names the part, its transaction and CSN, and the next step of an operator."""
    told = dict(reasons(status()))
    assert told["snapshot CSN of r1"] == "at CSN 12 of 12: nothing holds it back"
    assert "it follows" in told["snapshot CSN of r2"]
    for words in ("at CSN 7 of 12", "CSN 8 lacks part r1-1-4 of 6-r1-1-1", "admin resolve-lost r1-1-4"):
        assert words in told["snapshot CSN of r3"]
    assert "disk is full" in told["snapshot CSN of r4"]
    assert "starting" in told["snapshot CSN of r5"]
    assert "no sign of life" in told["snapshot CSN of r6"]


def test_a_skipped_record_is_told_with_its_operator() -> None:
    """With its transactions, if its bytes show them; an agent of before says nothing of them."""
    word = {"csn": 7, "by": "ann", "why": "rolled back", "tids": ["6-r1-1-1"], "time_ms": 9}
    told = dict(reasons(status(skipped=[word, word | {"csn": 8, "tids": []}])))
    assert told["record of CSN 7"] == "skipped by ann: rolled back; it held 6-r1-1-1"
    assert told["record of CSN 8"] == "skipped by ann: rolled back"


def test_tail_and_horizon_name_their_holders() -> None:
    """The slowest replica holds the tail; a pin, a replica or the retention holds the horizon."""
    told = dict(reasons(status()))
    assert "r6 is at CSN 0" in told["tail"]
    assert "pin r1-1-9" in told["horizon"]
    oldest = {"csn": 6, "kind": "oldest", "name": "r2"}
    assert "r2 has in use" in dict(reasons(status(holding_back=oldest)))["horizon"]


@pytest.mark.parametrize(
    ("story", "commit", "locks"),
    [
        ({"outcome": "committed", "csn": 9}, "not applied by r3", "until all replicas have applied CSN 9"),
        ({"outcome": "running", "here": {"state": "sealed"}}, "waits at r1 for copies on 2", "until it ends"),
        ({"outcome": "running", "here": None}, "has not asked for a commit", "until it ends"),
        ({"outcome": "aborted"}, "nothing waits", "next sweep"),
    ],
)
def test_a_transaction_explains_its_commit_and_its_locks(
    story: dict[str, Any], commit: str, locks: str
) -> None:
    """A commit that waits says for what; a lock says when it goes."""
    explained = {"tid": "6-r1-1-1", "home": "r1", "replicas": {"r1": 12, "r3": 7}} | story
    told = dict(reasons(status(), explained))
    assert commit in told["transaction 6-r1-1-1"]
    assert locks in told["locks of 6-r1-1-1"]


def test_lost_parts_are_shown_with_who_declared_them() -> None:
    """The audit trail of an operator's word is on the same screen."""
    lost = {
        "part": "r1-1-4",
        "by": "ann",
        "why": "burnt",
        "rows": 5,
        "table": "d.t",
        "csn": 8,
        "tid": "6-r1-1-1",
    }
    told = dict(reasons(status(lost=[lost])))
    assert told["part r1-1-4"] == "declared lost by ann: burnt; 5 rows of d.t, CSN 8, tid 6-r1-1-1"


def test_replicas_that_are_left_out_hold_nothing_back() -> None:
    """Tail, commits and locks wait for members only; the screen does not name any other replica."""
    rows = [
        replica("r1", 12),
        replica("r2", 11),
        replica("r3", 0, alive=False, member="removed"),
        replica("r4", 5, alive=False, member="struck"),
    ]
    explained = {
        "tid": "6-r1-1-1",
        "home": "r1",
        "outcome": "committed",
        "csn": 11,
        "replicas": {"r1": 12, "r2": 11, "r3": None, "r4": 5},
    }
    told = dict(reasons(status(replicas=rows), explained))
    assert "r2 is at CSN 11" in told["tail"]
    assert told["snapshot CSN of r3"] == "it was removed from the cluster; it holds nothing back"
    assert "it was struck" in told["snapshot CSN of r4"]
    assert "start its agent, and it clones" in told["snapshot CSN of r4"]
    assert told["transaction 6-r1-1-1"] == "committed at CSN 11; applied everywhere"
    assert "all replicas know of its removals" in told["locks of 6-r1-1-1"]


class Operated:
    """A target whose database is asked about a part."""

    asked: ClassVar[list[dict[str, Any]]] = []

    @contextmanager
    def connect(self) -> Iterator[Operated]:
        """Return the database."""
        yield self

    def resolve_lost(self, part: str, **given: Any) -> dict[str, Any]:
        """Answer about a part."""
        self.asked.append(given)
        return {"kind": "part", "table": "d.t", "csn": 8, "tid": "6-r1-1-1", "replicas": [], "part": part}


def test_an_operator_without_a_name_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container the uid may have no name; a question needs none, and a declaration needs --by."""

    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", unknown)
    target: Any = Operated()
    resolve_lost(target, "r1-1-4")
    resolve_lost(target, "r1-1-4", confirm=True, by="ann", why="burnt")
    with pytest.raises(typer.BadParameter, match="give --by NAME"):
        resolve_lost(target, "r1-1-4", confirm=True, why="burnt")
    assert [given["by"] for given in Operated.asked] == ["", "ann"]
