"""The answers of all replicas about themselves, and the wait until they have recovered."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from chaos.watching.seeing import status
from chaos.watching.waiting import comes_true
from chaos.world import World

_AT_ONCE: Final = 8


def statuses(world: World, replicas: Collection[str]) -> Mapping[str, dict[str, Any]]:
    """Return the status of each of these replicas that answers."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = threads.map(lambda replica: status(world, replica), replicas)
        return {replica: found for replica, found in zip(replicas, answers, strict=True) if found is not None}


def newest(told: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the newest CSN that any of them knows of; 0 if there are none."""
    return max((max(one["snapshot_csn"], one.get("end_csn", 0)) for one in told.values()), default=0)


def behind(told: Mapping[str, Mapping[str, Any]], replicas: Collection[str], csn: int) -> dict[str, str]:
    """Return the replicas that do not serve or have not applied a CSN, with what each lacks. Pure."""
    lacking = {}
    for replica in replicas:
        one = told.get(replica)
        if one is None:
            lacking[replica] = "does not answer"
        elif one["state"] != "serving":
            lacking[replica] = f"is {one['state']} ({one.get('reason') or 'no reason'})"
        elif one["snapshot_csn"] < csn:
            lacking[replica] = f"is at CSN {one['snapshot_csn']} and not at {csn}: {one.get('waiting_for')}"
    return lacking


def until_caught_up(world: World, replicas: Collection[str], *, timeout_s: float) -> dict[str, str]:
    """Wait until replicas serve and have applied what any replica knows of by now.

    Members that are removed meanwhile are not waited for.

    Returns:
        What is lacking after the timeout, by replica; nothing if all are well.
    """
    csn = newest(statuses(world, world.cluster.replicas))
    lacking: dict[str, str] = {}

    def caught_up() -> bool:
        nonlocal lacking
        there = [replica for replica in replicas if replica in world.cluster.replicas]
        lacking = behind(statuses(world, there), there, csn)
        return not lacking

    comes_true(caught_up, timeout_s)
    return lacking
