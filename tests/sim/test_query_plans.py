"""The catalog's statements use indexes: none walks all parts, outcomes or records while a shard works.

SQLite chooses an index by rules of thumb where nobody has analysed the data. It once walked every part of the
catalog at every commit, although an index of the few that it looked for was there.

`tests/sim/query_plans.txt` has the plan of every statement that was met so far: the drawn runs do not
meet all of them each time. `--rewrite-scripts` adds and replaces; review the difference. Another version of
SQLite may have other plans, so there the file is not compared.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import warnings
from typing import Any, ClassVar, Final

import pytest

from tests.sim.plan import draw
from tests.sim.world import simulate
from tests.support.project.source import ROOT

#: Runs whose statements are judged; together they commit, merge, collect, clone, start again and audit.
SEEDS: Final = (0, 1, 4)
#: Tables that grow with the shard.
LARGE: Final = frozenset({"parts", "outcomes", "csns", "files"})
#: Indexes of few rows, whatever the size of their table.
FEW: Final = frozenset({"parts_undecided", "parts_removing", "parts_not_held", "outcomes_of_batches"})
#: Functions, or rooms, whose statements may walk a large table.
ALLOWED: Final = {
    "audit/": "an audit judges everything, at a bounded rate",
    "cloning/": "a clone copies everything",
    "rebuilding/": "a tree in ZooKeeper is made out of everything",
    "storage/catalog_garbage.py:unused_csns": "once for each new horizon, in a thread of its own",
    "storage/catalog_reads.py:files": "at a start, and each clean_interval_s in a thread of its own",
    "storage/catalog_reads.py:part_counts": "at a start",
    "storage/catalog_reads.py:visible_bytes": "the progress of a clone",
    "storage/catalog_writes.py:drop_unneeded_files": "at a start",
    "storage/held_bytes.py:_rows": "the scrubber reads everything, a page at a time and at a bounded rate",
    "storage/held_bytes.py:total": "an audit that reads all bytes",
    "scrubbing/state_digest.py": "a comparison reads everything, in a thread of its own",
}
#: A step of a plan: how a table is read, by which index, from where to where.
STEP: Final = re.compile(r"(SCAN|SEARCH) (\w+)(?: USING (?:COVERING )?INDEX (\w+)(?: \((.*)\))?)?")
#: The plans of all statements, with the version of SQLite that made them in its first line.
GOLDEN: Final = ROOT / "tests/sim/query_plans.txt"
#: The folder of the agent's modules, as frames name them.
AGENT: Final = "/tidelock/replica_agent/"


class Explained(sqlite3.Connection):
    """A connection that asks SQLite, at the first use of each statement, how it runs it.

    Attributes:
        plans: The steps of each statement, by the statement and the function of the agent that runs it.
    """

    plans: ClassVar[dict[tuple[str, str], list[str]]] = {}

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Note how the statement runs, and run it."""
        self._explain(sql, parameters)
        return super().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Note how the statement runs, and run it."""
        rows = list(parameters)
        if rows:
            self._explain(sql, rows[0])
        return super().executemany(sql, rows)

    def _explain(self, sql: str, values: Any) -> None:
        frame = sys._getframe(2)  # the caller of execute
        while frame.f_code.co_name.startswith("<") and frame.f_back:  # a comprehension
            frame = frame.f_back
        _, of_agent, path = frame.f_code.co_filename.rpartition(AGENT)
        key = " ".join(sql.split()), f"{path}:{frame.f_code.co_name}"
        if of_agent and key not in self.plans and re.match(r"(SELECT|INSERT|UPDATE|DELETE|WITH)\b", key[0]):
            steps = super().execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
            self.plans[key] = [step for *_, step in steps]


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str], list[str]]:
    """The plans of all statements that the agents of some runs have used."""
    connect = sqlite3.connect

    def explained(*args: Any, **options: Any) -> sqlite3.Connection:
        return connect(*args, **options, factory=Explained)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", explained)
        patch.setattr(Explained, "plans", {})
        for seed in SEEDS:
            simulate(draw(seed), brief=True)
        return Explained.plans


def walks(step: str) -> bool:
    """Return whether a step reads a large table, or an index of it, from one end to the other."""
    found = STEP.match(step)
    if found is None or found[2] not in LARGE or found[3] in FEW:
        return False
    return found[1] == "SCAN" or found[4] == "file>?"


def test_no_statement_walks_a_large_table(plans: dict[tuple[str, str], list[str]]) -> None:
    """Some may; each of these is listed with its reason."""
    walking = {where: sql for (sql, where), steps in plans.items() if any(map(walks, steps))}
    assert {w: sql for w, sql in walking.items() if not any(map(w.startswith, ALLOWED))} == {}
    assert {one for one in ALLOWED if not any(where.startswith(one) for where in walking)} == set()
    assert {"add_staged", "_apply_tid", "collect_parts"} <= {w.rpartition(":")[2] for _, w in plans}


def blocks(plans: dict[tuple[str, str], list[str]]) -> dict[str, str]:
    """Return the plan of each statement as text, by the function and the statement."""
    return {
        f"{where}\n{sql}\n": "".join(f"    {step}\n" for step in steps)
        for (sql, where), steps in plans.items()
    }


def on_file() -> tuple[str, dict[str, str]]:
    """Return the version of SQLite that made the file, and its plans."""
    version, _, rest = GOLDEN.read_text(encoding="utf-8").partition("\n\n")
    found = {}
    for block in rest.split("\n\n"):
        where, sql, *steps = block.strip("\n").split("\n")
        found[f"{where}\n{sql}\n"] = "".join(f"{step}\n" for step in steps)
    return version, found


def exists(head: str) -> bool:
    """Return whether the function of a statement is still there."""
    path, _, function = head.partition("\n")[0].partition(":")
    file = ROOT / "replica_agent" / path
    return file.is_file() and f"def {function}(" in file.read_text(encoding="utf-8")


def test_every_plan_is_the_one_on_file(
    plans: dict[tuple[str, str], list[str]], request: pytest.FixtureRequest
) -> None:
    """A change of a statement, or of an index, shows what becomes of its plan."""
    made_with, expected = on_file()
    version, found = f"SQLite {sqlite3.sqlite_version}", blocks(plans)
    if request.config.getoption("--rewrite-scripts"):
        expected = {head: steps for head, steps in (expected | found).items() if exists(head)}
        made_with = version
        text = "\n".join(head + steps for head, steps in sorted(expected.items()))
        GOLDEN.write_text(f"{version}\n\n{text}", encoding="utf-8")
    assert any("add_staged" in head for head in expected)
    assert [head for head in expected if not exists(head)] == [], "these functions are gone"
    if made_with != version:
        warnings.warn(f"{GOLDEN.name} was made with {made_with}, so it is not compared", stacklevel=1)
        return
    changed = {head: steps for head, steps in found.items() if expected.get(head) != steps}
    assert changed == {}, "review these plans, and run the test with --rewrite-scripts"
