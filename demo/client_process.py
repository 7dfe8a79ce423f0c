"""A client process: some writers of one replica, driven by lines of JSON on standard input.

    {"do": "start", "writers": [0, 1, 2, 3], "interval_s": 0.4, "calm_after_s": 20, "calm_interval_s": 2}
    {"do": "rest"}
    {"do": "burst", "writers": [12, 13], "batches": 100}

"start" lets the writers write at a pace; "rest" lets them finish their batches and stop; "burst" commits a
number of batches in all, wave by wave. The very first line is the `Setup`. "rest" and "burst" are answered by
one line on standard output when they are done. The end of standard input, also by the death of the parent,
ends the process.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from demo.writer import BatchWriter, OrderKeys, Tally, Waves, WriterPace
from tidelock.client import Database, connect
from workloads import child
from workloads.history import Recorder
from workloads.tpch.orders import TpchScale


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a client process.

    Attributes:
        urls: API addresses of all agents.
        replica: The replica to which its writers are pinned.
        history: File of the history, of all client processes.
        scale_factor: Of the loaded data.
        keys: See `writer.OrderKeys`.
        token: The agents' shared secret, if they have one.
        timeout_s: How long a client waits for an answer and for the outcome of a commit.
    """

    urls: list[str]
    replica: str
    history: str
    scale_factor: float
    keys: dict[str, int]
    token: str | None
    timeout_s: float


class ClientProcess:
    """The writers of this process."""

    def __init__(self, setup: Setup, home: Database, all_replicas: Database, history: Recorder) -> None:
        self._history = history
        self._home = home
        self._all_replicas = all_replicas
        self._scale = TpchScale.of(setup.scale_factor)
        self._keys = OrderKeys(**setup.keys)
        self._pace = WriterPace()
        self._executor = ThreadPoolExecutor(max_workers=setup.keys["writers"], thread_name_prefix="writer")
        self._running: list[Future[Tally]] = []

    def start(
        self, writers: Sequence[int], interval_s: float, calm_after_s: float, calm_interval_s: float
    ) -> None:
        """Let writers write at a pace (see `WriterPace`), until `rest`."""
        self._pace = WriterPace(interval_s, calm_after_s, calm_interval_s)
        for writer in writers:
            self._begin(writer)

    def rest(self) -> dict[str, int]:
        """Wait until every writer has finished its batch; return their results, or raise the error of one."""
        self._pace.stop()
        return self._gather()

    def burst(self, writers: Sequence[int], batches: int) -> dict[str, int]:
        """Commit a number of batches in all, wave by wave (see `Waves`), and return the results."""
        self._pace = WriterPace()
        shares = [batches // len(writers) + (index < batches % len(writers)) for index in range(len(writers))]
        waves = Waves(shares)
        for writer, share in zip(writers, shares, strict=True):
            self._begin(writer, share, waves)
        return self._gather()

    def close(self) -> None:
        """Stop writing."""
        self._pace.stop()
        self._executor.shutdown(wait=True)

    def _begin(self, number: int, batches: int | None = None, waves: Waves | None = None) -> None:
        writer = BatchWriter(
            number, self._scale, self._keys, self._home, self._all_replicas, self._pace, waves
        )
        self._running.append(self._executor.submit(self._write, writer, batches))

    def _write(self, writer: BatchWriter, batches: int | None) -> Tally:
        writer.run(self._history, batches)
        return writer.tally

    def _gather(self) -> dict[str, int]:
        running, self._running = self._running, []
        tallies = [future.result() for future in running]
        return {
            "sent_again": sum(tally.sent_again for tally in tallies),
            "asked": sum(tally.asked for tally in tallies),
        }


def main() -> None:
    """Read the setup, then run the command of each line."""
    # Ctrl-C reaches the whole foreground; the parent ends its clients when it has received it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = child.requests()
    setup = Setup(**next(orders))
    with (
        Recorder(Path(setup.history)) as history,
        connect(setup.urls, replica=setup.replica, token=setup.token, timeout_s=setup.timeout_s) as home,
        connect(setup.urls, token=setup.token, timeout_s=setup.timeout_s) as all_replicas,
    ):
        client = ClientProcess(setup, home, all_replicas, history)
        commands: dict[str, Callable[..., dict[str, int] | None]] = {
            "start": client.start,
            "rest": client.rest,
            "burst": client.burst,
        }
        try:
            for order in orders:
                answer = commands[order.pop("do")](**order)
                if answer is not None:
                    child.answer(answer)
        finally:
            client.close()


if __name__ == "__main__":
    main()
