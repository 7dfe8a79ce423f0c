"""The command line of the chaos runner: `python -m chaos --seed 7 --minutes 3`."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chaos import faults, plants, workloads
from chaos.planning.plan import Plan, draw, enabled
from chaos.result import Result, told
from chaos.runner import chosen_workloads, run
from chaos.setup import images
from chaos.setup.options import Options
from demo.failure import DemoError
from tidelock.errors import TidelockError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one seed, several, or a plan; 0 if no promise was broken, 1 if one was, 2 if it could not run."""
    given = parser().parse_args(argv)
    for end in (signal.SIGINT, signal.SIGTERM):  # also where a shell starts it in the background
        signal.signal(end, signal.default_int_handler)
    try:
        plans = plans_of(given)
        tag = given.image_tag
        if tag is None and plans[0].place == "containers":
            tag = images.build(spark=plans[0].spark_workers > 0)
        options = options_of(given, tag)
    except (DemoError, ValueError, KeyError, TypeError, OSError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    base: Path = given.folder or Path("chaos-runs") / time.strftime("%Y%m%d-%H%M%S")
    results: list[Result] = []
    for plan in plans:
        folder = base / f"seed-{plan.seed}" if len(plans) > 1 else base
        kinds = {step.kind for step in plan.steps}
        print(f"seed {plan.seed}: {len(plan.steps)} faults of {len(kinds)} kinds, {folder}", flush=True)
        try:
            results.append(run(plan, folder, options))
        except (TidelockError, ValueError, OSError) as error:
            print(f"chaos: seed {plan.seed} did not run: {error}", file=sys.stderr)
            return 2
        print(told(results[-1], str(folder)), flush=True)
        if results[-1].interrupted:
            break
    if len(plans) > 1:
        print(summary(results))
    return 0 if len(results) == len(plans) and all(result.passed for result in results) else 1


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found, options = argparse.ArgumentParser(prog="python -m chaos", description=__doc__), Options()
    found.add_argument("--seed", type=int, help="draws faults and clients; default: the time")
    found.add_argument(
        "--seeds", type=int, default=1, help="so many runs one after the other, from --seed on"
    )
    found.add_argument("--minutes", type=float, default=3.0, help="how long faults come; default 3")
    found.add_argument("--containers", action="store_true", help="containers instead of processes")
    found.add_argument("--image-tag", help="take images with this tag in place of building them")
    found.add_argument("--replicas", type=int, default=3, choices=(3, 4, 5))
    found.add_argument("--copies", type=int, default=2)
    found.add_argument("--zookeepers", type=int, default=3, choices=(1, 3))
    found.add_argument("--workloads", type=_names, default=(), help=", ".join(_workload_names()))
    found.add_argument("--pace", type=float, default=1.0, help="times the pauses of clients; 0.5: more load")
    found.add_argument("--sessions", type=int, default=3, help="of Spark; 0: no Spark; default 3")
    found.add_argument(
        "--spark-workers", type=int, default=0, help="of the sessions; 0: they compute themselves"
    )
    found.add_argument("--only", type=_names, default=(), help="these faults alone, e.g. killed,frozen")
    found.add_argument("--without", type=_names, default=(), help="all faults but these")
    found.add_argument("--folder", type=Path, help="of the run; must not exist; default chaos-runs/<time>")
    found.add_argument(
        "--plan", type=Path, help="repeat the plan.json of a run; most other options are in it"
    )
    found.add_argument("--plant", choices=sorted(plants.ALL), help="a bug in all agents: the run must fail")
    found.add_argument(
        "--stall-s", type=float, default=options.stall_max_s, help="bound for the time without a commit"
    )
    found.add_argument("--converge-s", type=float, default=options.converge_s, help="bound for the healing")
    found.add_argument(
        "--disk-mib", type=int, default=options.disk_bytes >> 20, help="of each replica, in memory"
    )
    return found


def options_of(given: argparse.Namespace, image_tag: str | None) -> Options:
    """Return the settings of a command line besides its plans, with the tag of the images that are used."""
    return Options(given.stall_s, given.converge_s, disk_bytes=given.disk_mib << 20, image_tag=image_tag)


def plans_of(given: argparse.Namespace) -> list[Plan]:
    """Return the plans of a command line.

    Raises:
        ValueError, KeyError, TypeError, OSError: A name does not exist, or the file is no plan.
    """
    if given.plan is not None:
        return [Plan.from_json(given.plan.read_text(encoding="utf-8"))]
    place = "containers" if given.containers else "processes"
    usable = [fault for fault in faults.ALL if fault.kind in given.only or not fault.lack()]
    kinds = enabled(usable, place, only=given.only, without=given.without, sessions=given.sessions)
    first = int(time.time()) % 1_000_000 if given.seed is None else given.seed
    bare = Plan(
        seed=first,
        minutes=given.minutes,
        place=place,
        replicas=given.replicas,
        copies=given.copies,
        zookeepers=given.zookeepers,
        workloads=tuple(
            workload.name for workload in chosen_workloads(given.workloads, sessions=given.sessions)
        ),
        pace=given.pace,
        sessions=given.sessions,
        spark_workers=given.spark_workers,
        plant=given.plant,
    )
    return [draw(replace(bare, seed=first + number), kinds) for number in range(given.seeds)]


def summary(results: Sequence[Result]) -> str:
    """Return a table of several runs."""
    lines = ["| seed | result | commits | reads | faults | kinds | left out | seconds |", f"|{'---|' * 8}"]
    for one in results:
        figures = (
            one.plan.seed,
            "passed"
            if one.passed
            else "interrupted"
            if one.interrupted
            else f"{len(one.violations)} violations",
            one.commits,
            one.reads,
            sum(one.faults.values()),
            len(one.faults),
            one.spared,
            f"{one.seconds:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _workload_names() -> list[str]:
    return [workload.name for workload in workloads.ALL]


if __name__ == "__main__":
    sys.exit(main())
