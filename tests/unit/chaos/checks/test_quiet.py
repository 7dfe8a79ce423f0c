"""The check that a run of `pairs` shows something: it fails where the load has met nothing of it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest import mock

from chaos.checks.quiet import unmet
from chaos.record.journal import Journal, load
from chaos.workloads.pairs import MET, Pairs, events_met
from chaos.world import World
from tests.unit.chaos.lines import call, run
from tidelock.errors import BadRequestError

#: A call of the workload.
CALL: Final[dict[str, Any]] = call(1) | {"workload": "pairs"}


def met(*whats: str) -> list[dict[str, Any]]:
    """Return the lines of what the load has met."""
    return [{"ns": 5, "what": "met", "workload": "pairs", "met": what, "replica": "r1"} for what in whats]


def event(name: str, **facts: Any) -> str:
    """Return a line of the log of an agent."""
    return json.dumps({"event": name, "level": "info", **facts})


def test_a_load_that_meets_no_merge_or_no_collection_is_told() -> None:
    """One of three is missing, then all of them."""
    some = sorted(MET)
    assert unmet([run(), CALL, *met(*some)]) == []
    [found] = unmet([run(), CALL, *met(*some[1:])])
    assert (found.check, found.story) == ("quiet", f"Expected {some[0]}, found none.")
    assert len(unmet([run(), CALL])) == len(MET) == 3


def test_a_run_without_pairs_owes_no_merges() -> None:
    """Other workloads promise nothing of the kind."""
    assert unmet([run(), call(1)]) == []


def test_merges_and_collections_are_read_from_logs() -> None:
    """Merges of other tables, merges that gave way and collections of nothing do not count."""
    nothing = [
        event("compacted", table="default.la0"),
        event("gave_way", table="default.pairs_plus", reason='"compacted" by another'),
        event("collected", parts=0, manifests=3),
        '{"event": "compacted", "table": "default.pai',
        "Traceback",
    ]
    assert events_met(nothing) == set()
    merged = event("compacted", table="default.pairs_minus", parts=3)
    assert events_met([*nothing, merged]) == {"a merge of pairs_minus"}
    assert events_met([event("collected", parts=4, manifests=0)]) == {"a collection"}


def test_a_client_notes_what_the_load_has_met(tmp_path: Path) -> None:
    """Each event once, with the replica that tells of it; the run waits until all were met."""
    logs = {
        "r1": event("compacted", table="default.pairs_plus"),
        "r2": "\n".join([event("compacted", table="default.pairs_minus"), event("collected", parts=2)]),
    }

    def node(name: str) -> SimpleNamespace:
        if name not in logs:  # a replica that is registered gets its node a moment later
            raise BadRequestError(f"expected one of r1, r2, found {name!r}")
        return SimpleNamespace(log=lambda: logs[name])

    cluster = SimpleNamespace(replicas=["r3", "r1"], node=node, connect=mock.MagicMock())
    values = dict.fromkeys(World.__dataclass_fields__, cast("Any", 0))
    stopping = SimpleNamespace(wait=lambda _: False, is_set=lambda: False)
    with Journal(tmp_path / "journal.jsonl") as journal:
        values |= {"cluster": cluster, "folder": tmp_path, "journal": journal, "stopping": stopping}
        with closing(Pairs(World(**values))) as pairs:
            pairs.prepare(mock.MagicMock())
            watching, *_ = pairs.clients()
            watching.step()
            content = [pairs.content]
            cluster.replicas = ["r1", "r2"]
            watching.step()
            watching.step()
            content.append(pairs.content)
        told = [line for line in load(journal.path) if line["what"] == "met"]
    assert [(line["met"], line["replica"]) for line in told[:1]] == [("a merge of pairs_plus", "r1")]
    assert {line["met"] for line in told[1:]} == MET - {"a merge of pairs_plus"}
    assert content == [False, True]
    assert len(told) == len(MET)
    assert unmet([CALL, *told]) == []
