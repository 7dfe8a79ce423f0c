"""Asks every replica again and again what it says of itself, and looks which sessions of Spark run."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from chaos.watching.seeing import status
from chaos.world import World

INTERVAL_S: Final = 0.5
_AT_ONCE: Final = 8


class Sampler:
    """Writes `csn` and `spark` lines inside its block.

    A replica that is slow to answer is asked again when it has.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        asked: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            while not self._over.wait(INTERVAL_S):
                alive = [one.job for one in list(self._world.drivers.values()) if one.alive]
                self._world.journal.note("spark", sessions=len(alive), jobs=[job for job in alive if job])
                for replica in self._world.cluster.replicas:
                    if replica not in asked or asked[replica].done():
                        asked[replica] = threads.submit(self._sample, replica)

    def _sample(self, replica: str) -> None:
        try:
            found = status(self._world, replica)
        except Exception as error:
            self._world.journal.note("note", text=f"{replica} was not sampled: {error!r}")
            return
        if found is None:
            self._world.journal.note("csn", replica=replica, csn=None, state="silent")
            return
        self._world.journal.note(
            "csn",
            replica=replica,
            csn=found["snapshot_csn"],
            state=found["state"],
            horizon=found["horizon"],
            held_by=found["holding_back"],
            pins=found["pins"],
            open=found["open_transactions"],
        )
