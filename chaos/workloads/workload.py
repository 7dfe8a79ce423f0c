"""The interface of a workload: tables, clients that use them as users do, and a judge of their answers."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from chaos.clients.session import Found, Session
from chaos.record.history import History, Operation
from chaos.record.violation import Violation
from chaos.spark.job import SparkJob
from chaos.world import World
from tidelock.client import Database, Snapshot
from tidelock.errors import TableExistsError

#: Reads at old CSNs go back so many reads of the newest.
_REMEMBERED: Final = 200
#: Property of tables that are read at old CSNs: they keep history for longer than the other tables of a run,
#: and not so long that no part is collected in a long run.
SOME_HISTORY: Final = {"retention_s": "300"}


class Client(ABC):
    """One client of a workload. A thread calls `step` until the run ends."""

    @abstractmethod
    def step(self) -> None:
        """Do one thing, and write it into the history and the journal.

        What a user may have to bear is caught and written down. Any other error ends the run as a violation.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds; called when it steps no more."""


class Acting(Client):
    """A client that does the same thing again and again.

    Args:
        session: Its connection.
        act: The thing.
        pause_s: Its pause behind each, in seconds; what is drawn lies between half and one and a half of it.
    """

    def __init__(self, session: Session, act: Callable[[], object], pause_s: float) -> None:
        self._session, self._act, self._pause_s = session, act, pause_s

    def step(self) -> None:
        """Do it, and pause."""
        self._act()
        self._session.rest(self._pause_s * random.uniform(0.5, 1.5))

    def close(self) -> None:
        """Give the connection back."""
        self._session.close()


class Workload(ABC):
    """One workload in one run.

    Args:
        world: The run.
        pace: What the pauses of its clients are multiplied by: 0.5 is about twice the load.
    """

    #: Its name: of its tables, its history, and on the command line.
    name: ClassVar[str]
    #: One sentence: what it does, and what would be wrong.
    promise: ClassVar[str]
    #: Settings that agents need for it, by their names.
    settings: ClassVar[Mapping[str, object]] = {}
    #: Whether it needs Spark.
    spark: ClassVar[bool] = False

    def __init__(self, world: World, *, pace: float = 1.0) -> None:
        self.world = world
        self.pace = pace
        self.history = History(world.history(self.name))
        self.path = self.history.path
        self._sessions = itertools.count()
        self._seen: list[int] = []

    @abstractmethod
    def prepare(self, db: Database) -> None:
        """Create its tables on a cluster that is well."""

    @abstractmethod
    def clients(self) -> Sequence[Client]:
        """Return its clients, writers and readers; each runs in a thread of its own."""

    def spark_jobs(self) -> Sequence[SparkJob]:
        """Return what sessions of Spark do for it, again and again."""
        return ()

    @property
    def content(self) -> bool:
        """Whether its clients have met all that they work for; a run waits for it, when all is healed."""
        return True

    def last_spark_jobs(self) -> Sequence[SparkJob]:
        """Return what a session of Spark must do for it once, when all is healed, before it is judged."""
        return ()

    @abstractmethod
    def judge(self, db: Database) -> Sequence[Violation]:
        """Read the final state, and judge the history; called once, when all is healed and clients ended."""

    def close(self) -> None:
        """Close its history; called when it was judged."""
        self.history.close()

    def session(self, replica: str | None = None) -> Session:
        """Return a client; one after the other is given all addresses, one address, and one replica.

        Args:
            replica: The only replica that it works with.
        """
        if replica is not None:
            return Session(self.world, self.name, self.history, replica=replica)
        number = next(self._sessions)
        replicas = sorted(self.world.cluster.replicas)
        one = replicas[number // 3 % len(replicas)]
        way = number % 3
        return Session(
            self.world,
            self.name,
            self.history,
            first=one,
            learns=way == 1,
            replica=one if way == 2 else None,  # noqa: PLR2004 - the third way
        )

    def acting(
        self, act: Callable[[Session], object], pause_s: float, *, replica: str | None = None
    ) -> Client:
        """Return a client that does one thing again and again, through a session of its own."""
        session = self.session(replica)
        return Acting(session, lambda: act(session), pause_s * self.pace)

    def readers(self, read: Callable[[Session, int | None], int | None], pause_s: float) -> list[Client]:
        """Return readers: of the newest CSN, pinned at each replica and at any, and of old CSNs at any.

        Args:
            read: Reads at a CSN, None = the newest, and returns it; None if there was no answer.
            pause_s: About so often one of them reads, in seconds.
        """

        def newest(session: Session) -> None:
            csn = read(session, None)
            if csn is not None:
                self._seen = [*self._seen[-_REMEMBERED:], csn]

        def old(session: Session) -> None:
            if self._seen:
                # Most are young: a table whose history is collected quickly has no others.
                back = int(len(self._seen) * random.random() ** 3)
                read(session, self._seen[-1 - back])

        pinned = sorted(self.world.cluster.replicas)
        each_s = pause_s * (len(pinned) + 2)
        found = [self.acting(newest, each_s, replica=replica) for replica in (*pinned, None)]
        return [*found, self.acting(old, each_s)]

    def read_everywhere(
        self, db: Database, value: Sequence[Operation], look: Callable[[Session, Snapshot], Found], f: str
    ) -> int:
        """Read at each replica at the newest CSN, when all is well; return it.

        Args:
            db: A client of the cluster.
            value: The reads, with None.
            look: Reads, and returns them filled.
            f: The kind of the operation in the history.
        """
        with db.snapshot() as snap:
            csn = snap.csn
        for replica in sorted(self.world.cluster.replicas):
            session = self.session(replica)
            session.must_read(value, partial(look, session), csn=csn, f=f)
            session.close()
        return csn

    def create(self, db: Database, name: str, schema: pa.Schema, **options: Any) -> None:
        """Create a table, and wait until every replica shows it: a client may begin at any of them.

        Args:
            db: A client of the cluster.
            name: Its name; one whose creation was in doubt may be there already.
            schema: Its columns.
            options: As those of `Database.create_table`.
        """
        try:
            csn = db.create_table(name, schema, **options)["csn"]
        except TableExistsError:
            csn = db.table(name)["csn"]
        for replica in self.world.cluster.replicas:
            with self.world.cluster.connect(replica) as one:
                one.table(name, csn=csn)
