"""A run from its begin to its end: cluster, load, faults, healing, checks, report."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import chaos.report
from chaos import checks, faults, plants, workloads
from chaos.healing import commit_again, converge, heal
from chaos.injector import Injector
from chaos.load import Load
from chaos.planning.plan import Plan
from chaos.record.journal import Journal, load
from chaos.record.violation import Violation
from chaos.record.violations import Violations
from chaos.result import Result, result_of
from chaos.setup.options import Options
from chaos.setup.settings import SETTINGS
from chaos.setup.versions import versions
from chaos.spark.pool import Pool
from chaos.watching.sampler import Sampler
from chaos.watching.waiting import comes_true
from chaos.workloads.workload import Workload
from chaos.world import World
from tests.support.clusters.agreeing import all_follow
from tidelock.testing import Cluster

#: Commits that clients have made before the first fault comes. The time for them, and for all sessions of
#: Spark to begin, in seconds.
_WARM: Final = 20
_WARM_TIMEOUT_S: Final = 120.0
#: How long clients go on when all is healed, until they have met what they work for, in seconds: leases of a
#: minute end, then history of some seconds, and the next collection.
_CONTENT_TIMEOUT_S: Final = 180.0


def run(plan: Plan, folder: Path, options: Options) -> Result:
    """Run a plan and write its report; Ctrl-C ends the faults, heals and still writes the report.

    Args:
        plan: The plan.
        folder: The folder of the run, which must not exist; it stays.
        options: See there.

    Raises:
        ConfigError: Such a cluster cannot be made on this machine.
        UnavailableError: The cluster did not start.
        ValueError: A name of the plan does not exist.
    """
    folder.mkdir(parents=True)
    (folder / "histories").mkdir()
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    begin_s = time.monotonic()
    loads = chosen_workloads(plan.workloads, sessions=plan.sessions)
    with Journal(folder / "journal.jsonl") as journal:
        violations = Violations(journal)
        cluster = make_cluster(plan, folder / "cluster", loads, options)
        interrupted = False
        try:
            with cluster:
                world = World(cluster, folder, journal, plan.seed, plan.copies, options.stall_max_s)
                try:
                    _Run(world, plan, violations, options).all(loads)
                except KeyboardInterrupt:
                    interrupted = True
                finally:
                    keep_logs(world)
        finally:
            journal.note("phase", name="over")
    lines = list(load(folder / "journal.jsonl"))
    seconds = time.monotonic() - begin_s
    result = result_of(
        plan, lines, violations.found, options=options, seconds=seconds, interrupted=interrupted
    )
    (folder / "result.json").write_text(
        json.dumps(result.to_json(), indent=1, ensure_ascii=False), encoding="utf-8"
    )
    chaos.report.write(folder)
    return result


def chosen_workloads(names: Sequence[str], *, sessions: int) -> list[type[Workload]]:
    """Return workloads by their names; without names all that a run with so many sessions of Spark can have.

    Raises:
        ValueError: One does not exist, or needs Spark.
    """
    known = {workload.name: workload for workload in workloads.ALL}
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"no such workload: {', '.join(wrong)}; there are {', '.join(known)}")
    if needing := [name for name in names if known[name].spark and not sessions]:
        raise ValueError(f"{', '.join(needing)} needs sessions of Spark; give --sessions 3")
    every = [name for name, workload in known.items() if sessions or not workload.spark]
    return [known[name] for name in names or every]


def make_cluster(plan: Plan, folder: Path, loads: Sequence[type[Workload]], options: Options) -> Cluster:
    """Return the cluster of a run, not started yet; errors as those of the kinds of `Cluster`."""
    common: dict[str, Any] = {
        "replicas": plan.replicas,
        "copies": plan.copies,
        "zookeepers": plan.zookeepers,
        "settings": settings_with(loads),
        "environment": {} if plan.plant is None else plants.environment(plan.plant),
        "spark_workers": plan.spark_workers,
        "disk_bytes": options.disk_bytes,
    }
    if plan.place == "containers":
        kinds = () if options.image_tag is None else ("agent", "zookeeper", "spark")
        images: dict[str, Any] = {f"{kind}_image": f"tidelock-{kind}:{options.image_tag}" for kind in kinds}
        return Cluster.containers(folder, **common, **images)
    return Cluster.processes(folder, isolated=True, **common)


def settings_with(loads: Iterable[type[Workload]]) -> dict[str, object]:
    """Return the settings of the agents: those of every run, and what the workloads ask for."""
    settings = dict(SETTINGS)
    for workload in loads:
        settings |= dict(workload.settings)
    return settings


def keep_logs(world: World) -> None:
    """Keep the log of each node, those of removed members too."""
    (world.folder / "logs").mkdir()
    for name in sorted({*world.cluster.zookeepers, *ever_members(world.journal.path)}):
        with contextlib.suppress(OSError):
            text = world.cluster.node(name).log()
            (world.folder / "logs" / f"{name}.log").write_text(text, encoding="utf-8")


def ever_members(journal: Path) -> set[str]:
    """Return all replicas that a journal knows of."""
    found: set[str] = set()
    for line in load(journal):
        if line["what"] in {"run", "members"}:
            found |= {*line["replicas"]}
        elif line["what"] == "csn":
            found.add(line["replica"])
    return found


class _Run:
    """The phases of a run on a cluster that runs."""

    def __init__(self, world: World, plan: Plan, violations: Violations, options: Options) -> None:
        self._world, self._plan, self._violations, self._options = world, plan, violations, options
        kinds = {fault.kind: fault for fault in faults.ALL}
        if wrong := {step.kind for step in plan.steps} - kinds.keys():
            raise ValueError(f"no such fault: {', '.join(sorted(wrong))}; there are {', '.join(kinds)}")
        self._injector = Injector(world, plan, kinds, violations)
        self._checks = [check() for check in checks.ALL]

    def all(self, loads: Sequence[type[Workload]]) -> None:
        """Run all phases. KeyboardInterrupt passes, when all is healed."""
        world, plan = self._world, self._plan
        world.journal.note(
            "run",
            seed=plan.seed,
            minutes=plan.minutes,
            kind=plan.place,
            replicas=plan.shape.replicas,
            zookeepers=plan.shape.zookeepers,
            copies=plan.copies,
            history_s=settings_with(loads)["history_retention_s"],
            versions=versions(),
        )
        with Sampler(world):
            running = [workload(world, pace=plan.pace) for workload in loads]
            try:
                self._under_load(running)
                self._check(running)
            finally:
                for workload in running:
                    workload.close()

    def _under_load(self, running: Sequence[Workload]) -> None:
        world = self._world
        self._phase("load")
        with world.cluster.connect() as db:
            for workload in running:
                workload.prepare(db)
            for check in self._checks:
                check.prepare(world)
        all_follow(world.cluster)
        clients = Load(world, running, self._violations)
        sessions = self._sessions(running)
        try:
            with self._healed():
                self._warm_up(sessions)
                self._phase("faults")
                self._injector.run()
            commit_again(world, self._violations)
            # Faults and what they leave open hold history for most of a short run.
            comes_true(lambda: all(workload.content for workload in running), _CONTENT_TIMEOUT_S)
            clients.end()
            sessions.finish([job for workload in running for job in workload.last_spark_jobs()])
        finally:
            clients.end()
            sessions.stop()
        for error in sessions.errors:
            story = "".join(traceback.format_exception(error))
            self._violations.add(Violation("Spark", "users need not bear this error", story))

    def _warm_up(self, sessions: Pool) -> None:
        """Wait until clients commit and all sessions of Spark have begun."""
        journal = self._world.journal
        if not comes_true(lambda: sessions.complete and journal.count("write") >= _WARM, _WARM_TIMEOUT_S):
            self._tell(
                "I14 LIVE",
                f"expected {_WARM} commits and all sessions of Spark in {_WARM_TIMEOUT_S:.0f} s, found "
                f"{journal.count('write')} and {len(self._world.drivers)}",
            )

    def _sessions(self, running: Sequence[Workload]) -> Pool:
        """Start the sessions of Spark, if the plan has any."""
        jobs = [job for workload in running for job in workload.spark_jobs()] if self._plan.sessions else []
        pool = Pool(self._world, jobs, sessions=self._plan.sessions if jobs else 0)
        pool.start()
        return pool

    @contextlib.contextmanager
    def _healed(self) -> Iterator[None]:
        """Heal all at the end of the block, however it ends."""
        try:
            yield
        finally:
            self._injector.heal()
            self._phase("heal")
            heal(self._world, self._violations)
            converge(self._world, timeout_s=self._options.converge_s)

    def _check(self, running: Sequence[Workload]) -> None:
        self._phase("check")
        with self._world.cluster.connect() as db:
            for check in self._checks:
                self._judge(check.name, partial(check.judge, self._world))
            for workload in running:
                self._judge(workload.name, partial(workload.judge, db))

    def _judge(self, name: str, judge: Callable[[], Sequence[Violation]]) -> None:
        """Judge; a judge that fails is a violation, since the run is not proven to be right."""
        try:
            found = judge()
        except Exception:
            found = [Violation(name, "a run can be judged", traceback.format_exc())]
        self._violations.add(*found)
        self._world.journal.note("judged", check=name, found=len(found))

    def _phase(self, name: str) -> None:
        self._world.journal.note("phase", name=name)

    def _tell(self, claim: str, story: str) -> None:
        self._violations.add(Violation("runner", claim, story, time.monotonic_ns()))
