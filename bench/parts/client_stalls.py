"""The stalls of Python clients while a replica is killed or frozen: the longest time without an answer.

Three replicas, two copies. Clients of all kinds work all the time, each in a thread of its own and on a
table of its own, on small rows: what is measured is the waiting. One replica is hit at drawn moments. Its
readers are the clients that prefer it, and those whose snapshot it pins; its writers those whose home it is,
and those of whose home it is a peer. A replica that is frozen goes on after a time that is longer than a
ZooKeeper session: a client that comes back to it too early stalls once more, and that counts.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tidelock.client import Database, connect
from tidelock.client.agents.transport import Timeouts
from tidelock.cluster import LocalCluster
from tidelock.errors import CommitUnknownError, LabelExistsError, TidelockError

#: The replica that is hit, and one that is not.
_HIT, _OTHER = "r2", "r1"
EVENTS: Final = (("frozen", signal.SIGSTOP), ("killed", signal.SIGKILL))
#: How long a replica is frozen, or dead before it is started again: longer than a ZooKeeper session.
_DOWN_S: Final = 12.0
#: So often the clients are watched for as long while nothing happens.
_USUAL_TIMES: Final = 5
#: A hit comes so long after all is well, at most; drawn, so that it meets each step of a request.
_BEFORE_S: Final = 1.0
#: How long a client stays away from a replica that has not answered: the next hit waits until it is back.
_AWAY_S: Final = Timeouts().suspect_s + 3.0
_READY_S: Final = 60.0
_LOOK_S: Final = 0.1
_SCHEMA: Final = pa.schema([("k", pa.int64())])
_SEED: Final = 1


@dataclass
class Client:
    """A client that calls again and again.

    Attributes:
        what: What it does, for the table.
        call: One call, which returns when it is answered.
        answers: When each call was answered.
    """

    what: str
    call: Callable[[], object]
    answers: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def work(self, over: threading.Event) -> None:
        """Call until it is over; an error is no answer."""
        while not over.is_set():
            try:
                self.call()
            except TidelockError as error:
                self.failures.append(f"{type(error).__name__}: {error.message}")
                time.sleep(0.01)
                continue
            self.answers.append(time.monotonic())

    def stall_s(self, begun: float, ended: float) -> float:
        """Return the longest time without an answer that touches a period."""
        before = [at for at in self.answers if at <= begun][-1:]
        inside = [at for at in self.answers if begun < at <= ended]
        after = [at for at in self.answers if at > ended][:1] or [time.monotonic()]
        return max(b - a for a, b in itertools.pairwise([*(before or [begun]), *inside, *after]))


def run(folder: Path, *, repeats: int) -> list[dict[str, Any]]:
    """Hit the replica so many times in each way; return the stalls of each kind of client.

    Raises:
        RuntimeError: The replica does not serve again, or a client was never answered.
    """
    drawn = random.Random(_SEED)
    with LocalCluster.create(folder / "clients") as cluster, ExitStack() as closing:
        clients = list(_clients(cluster, closing))
        over = threading.Event()
        threads = [threading.Thread(target=client.work, args=(over,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            usual = _usual(clients, repeats)
            found = [
                figures | {"usual_s": usual[figures["who"]]}
                for event, signum in EVENTS
                for figures in _hits(cluster, clients, event, signum, repeats, drawn)
            ]
        finally:
            over.set()
            for thread in threads:
                thread.join()
    return found


def _usual(clients: Sequence[Client], repeats: int) -> dict[str, float]:
    """Return the longest time without an answer of each client while nothing happens, the median of some."""
    longest: dict[str, list[float]] = {client.what: [] for client in clients}
    time.sleep(_DOWN_S)  # the first calls open connections and start processes
    for _ in range(min(repeats, _USUAL_TIMES)):
        begun = time.monotonic()
        time.sleep(_DOWN_S)
        for client in clients:
            longest[client.what].append(client.stall_s(begun, time.monotonic()))
    return {what: round(statistics.median(found), 2) for what, found in longest.items()}


def _hits(
    cluster: LocalCluster,
    clients: Sequence[Client],
    event: str,
    signum: signal.Signals,
    repeats: int,
    drawn: random.Random,
) -> Iterator[dict[str, Any]]:
    stalls: dict[str, list[float]] = {client.what: [] for client in clients}
    for _ in range(repeats):
        time.sleep(drawn.uniform(0.0, _BEFORE_S))
        begun = time.monotonic()
        cluster.kill(_HIT, signum)
        time.sleep(_DOWN_S)
        if signum is signal.SIGSTOP:
            cluster.kill(_HIT, signal.SIGCONT)
        else:
            cluster.start(_HIT)
        ended = time.monotonic()
        await_serving(cluster, _HIT)
        time.sleep(_AWAY_S)
        for client in clients:
            stalls[client.what].append(client.stall_s(begun, ended))
    for client in clients:
        if not client.answers:
            raise RuntimeError(f"{client.what}: no answer at all; {client.failures[-1:]}")
        yield {
            "event": event,
            "who": client.what,
            "times": repeats,
            "stall_s": round(statistics.median(stalls[client.what]), 2),
            "stall_max_s": round(max(stalls[client.what]), 2),
        }


def _clients(cluster: LocalCluster, closing: ExitStack) -> Iterator[Client]:
    """Yield the clients; their tables are made."""
    with cluster.connect(_OTHER) as db:
        for table in ("seen", "home", "peer", "looped"):
            db.create_table(table, _SCHEMA)
        db.insert("seen", _row(1), wait="all")

    def connected(replica: str) -> Database:
        # Not pinned, as `cluster.connect` is: a client that goes on elsewhere.
        return closing.enter_context(connect(cluster.url(replica)))

    reader, querying, pinning = connected(_HIT), connected(_HIT), connected(_HIT)
    yield Client("reader, newest rows", lambda: reader.read("seen"))
    yield Client("reader, one row of SQL", lambda: _count(querying))
    pinned = closing.enter_context(pinning.snapshot(lease=600.0))
    yield Client("reader, one snapshot", lambda: pinned.read("seen"))
    looped, at_home, of_peer = connected(_HIT), connected(_HIT), connected(_OTHER)
    numbers = itertools.count()
    yield Client(
        "writer, home is hit, documented loop",
        lambda: load_once(looped, "looped", _row(2), f"load {next(numbers)}"),
    )
    yield Client("writer, home is hit, inserts", lambda: at_home.insert("home", _row(3)))
    yield Client("writer, a peer is hit, inserts", lambda: of_peer.insert("peer", _row(4)))


def _count(db: Database) -> pa.Table:
    with db.snapshot() as snapshot:
        return snapshot.sql("select count(*) from seen")


def _row(number: int) -> pa.Table:
    return pa.table({"k": [number]}, schema=_SCHEMA)


def load_once(db: Database, table: str, rows: pa.Table, label: str) -> object:
    """Insert rows once, by the loop of docs/transactions.md, for as long as it takes."""
    for attempt in itertools.count():
        try:
            with db.begin(label) as tx:
                tx.insert(table, rows)
        except LabelExistsError as error:
            return error.details["csn"]
        except CommitUnknownError as error:
            found = db.outcome(error.details["tid"])
            if found.decision == "committed":
                return found.csn
        except TidelockError:
            pass
        else:
            return tx.csn
        time.sleep(0.1 * 2 ** min(attempt, 5))
    raise AssertionError("the loop has no end")


def await_serving(cluster: LocalCluster, replica: str) -> None:
    """Wait until a replica serves; RuntimeError if it does not."""
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        states = {row["id"]: row.get("state") for row in cluster.status()["replicas"]}
        if states.get(replica) == "serving":
            return
        time.sleep(_LOOK_S)
    raise RuntimeError(f"{replica} does not serve {_READY_S:g} s after it was hit")
