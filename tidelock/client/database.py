"""The client's view of a cluster, and `connect`, which makes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
import pyarrow as pa

from tidelock import secret_file
from tidelock.client.agents.connection import Connection
from tidelock.client.agents.discovery import addresses_of, agents, default_url
from tidelock.client.agents.members import KnownMembers
from tidelock.client.agents.transport import Timeouts, Transport, segment
from tidelock.client.membership import Membership
from tidelock.client.reads.audit import TIMEOUT_S, AuditReport, audit
from tidelock.client.reads.each import SnapshotEach, WithoutPin
from tidelock.client.reads.following import Following
from tidelock.client.reads.scan import Params, Scan
from tidelock.client.reads.snapshot import Snapshot
from tidelock.client.tables import Tables
from tidelock.client.values.arguments import csn_or_name, csn_or_none, milliseconds, plain, seconds
from tidelock.client.values.results import ExportResult, LabelStatus, Outcome, TransactionAtHome
from tidelock.client.writes.autocommit import AutocommitStatements
from tidelock.client.writes.beginning import Later, begin_at_home
from tidelock.client.writes.decide import ask_outcome, home_of
from tidelock.client.writes.definitions import Definitions
from tidelock.client.writes.joined import Joining
from tidelock.client.writes.landing import Landing
from tidelock.client.writes.transaction import Transaction
from tidelock.client.writes.whole_writes import ReservedBlocks
from tidelock.errors import (
    TidelockError,
    UnavailableError,
)
from tidelock.wire.cluster import (
    Explanation,
    HorizonAnswer,
    HorizonRequest,
    LostPart,
    LostPartRequest,
    OptimizeAnswer,
    OptimizeRequest,
    StatusAnswer,
    SwitchesAnswer,
    SwitchInfo,
    SwitchRequest,
)
from tidelock.wire.reads import SnapshotPin, SnapshotRequest
from tidelock.wire.rows import RowList, instant
from tidelock.wire.transactions import BeginRequest, EndAnswer, LabelAnswer, TransactionInfo

T = TypeVar("T")


def connect(
    url: str | Path | Sequence[str | Path] | None = None,
    *,
    replica: str | None = None,
    token: str | None = None,
    timeout_s: float = 60.0,
    connect_timeout_s: float = 2.0,
    query_timeout_s: float = 330.0,
    wait_log_s: float = 2.0,
    members_refresh_s: float = 30.0,
    members_file: str | Path | None = None,
) -> Database:
    """Connect to a cluster.

    Args:
        url: `http://host:port` of one agent (the others are learnt from it), or several of them in the order
            to be tried, or `zk://host:port,host:port/root` to learn all agents from ZooKeeper; then a random
            replica among those that are alive is preferred. Of several addresses those of ZooKeeper are used
            only if no agent answers. Or the folder of a local cluster (`tidelock up --data-dir`), such as
            "demo" below the current folder. Default: the address in the environment variable TIDELOCK_URL,
            and without that the folder `tidelock-data` below the current one, which `tidelock up` makes.
        replica: Work with this replica only, and never switch to another.
        token: The shard's shared secret, if the agents have one. Default: that of the environment variable
            TIDELOCK_SECRET, or in the file that TIDELOCK_SECRET_FILE names.
        timeout_s: How long to wait for the answer of a silent agent, and for the outcome of a commit.
        connect_timeout_s: How long to wait for a connection.
        query_timeout_s: How long to wait for the first rows of a query; it must exceed the agents'
            `sql_timeout_s`.
        wait_log_s: From this length on a wait is logged, with what it waits for: by the logger
            `tidelock.client.waits`, as a warning, or as information while an agent works (queries, inserts).
        members_refresh_s: After this time the client reads the list of all agents again, at its next request;
            it does so too when one has not answered. So it outlives every agent that it began with.
        members_file: A file in which the client keeps the addresses of all agents. They are tried if no agent
            answers at `url`, so that a program which knows one address starts while that agent is down.

    Raises:
        BadRequestError: `url` or the token has another form, or the replica does not exist.
        ConfigError: A zk:// address cannot be used, or no cluster exists below its root; the folder has no
            cluster; or the file of the secret has none.
        AccessDeniedError: The token is missing or wrong.
        UnavailableError: No agent answers.
    """
    url = default_url(os.environ) if url is None else url
    scheme, addresses, zookeepers = addresses_of([url] if isinstance(url, str | Path) else url)
    timeouts = Timeouts(
        connect_s=connect_timeout_s,
        answer_s=timeout_s,
        query_s=query_timeout_s,
        wait_log_s=wait_log_s,
        members_s=members_refresh_s,
    )
    token = secret_file.of_environment(os.environ) if token is None else token
    transport = Transport(scheme=scheme, token=token, timeouts=timeouts)
    file = None if members_file is None else Path(members_file)
    try:
        try:
            if not addresses:
                addresses = _discovered(transport, zookeepers.pop(0))
            members = KnownMembers(transport, addresses, replica=replica, file=file)
        except UnavailableError:
            if not zookeepers:
                raise
            found = [address for one in zookeepers for address in _discovered(transport, one)]
            members = KnownMembers(transport, [*addresses, *found], replica=replica, file=file)
        return Database(Connection(transport, members))
    except TidelockError:
        transport.close()
        raise


#: How long replicas may take to read a part before they say whether they hold it, and to commit (seconds).
_RESOLVE_S: Final = 120.0


class Database(Tables, AutocommitStatements, Landing, Joining, Following):
    """A cluster as one client sees it; made by `connect`. Any number of threads may use it.

    It never goes back in time: it remembers the highest CSN that it has committed or read on any replica,
    and every transaction and snapshot that it begins contains that CSN (I11). All methods raise
    UnavailableError when no replica that the client may use can answer.

    It can be pickled, with its token: another process then has a separate client that continues from the
    same highest CSN.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tids = ReservedBlocks(connection)
        self._definitions = Definitions(connection)

    def begin(
        self,
        label: str | None = None,
        *,
        batch: int | None = None,
        isolation: str = "snapshot",
        min_csn: int | None = None,
        fresh: bool = False,
        lease: str | float | None = None,
        meta: Mapping[str, Any] | None = None,
        progress: str | None = None,
        key: str | None = None,
    ) -> Transaction:
        """Begin a transaction; a context manager that commits at the end and rolls back on an exception.

        Without an argument nothing is sent yet: the transaction begins with the first call that needs its
        home. That is any statement but a small `insert`, and any look at its `tid` or `snapshot_csn`. It also
        begins before its thread sends anything else, with whichever client of the process. So for a single
        thread all reads see what was committed at `begin`. Where another thread or process is told to commit
        something after it, read `snapshot_csn` before: that fixes the snapshot. If nothing has needed the
        home by the commit, begin, rows and commit travel as one request, as in `write`. With any argument
        the transaction begins here.

        Args:
            label: Unique name of this piece of work: a second run under it is refused with the CSN of the
                first, here if that CSN is known already, and by the commit in any case.
            batch: Number of the batch, if the label belongs to a streaming query: each batch takes effect
                once, in order.
            isolation: "snapshot": all reads see what was committed when it began. "read_committed": each
                statement sees what was committed when it began. "serializable": as snapshot, and the commit
                is refused (SerializationConflictError) if any rows that were read have changed since.
            min_csn: Its snapshot must contain this CSN; what this client has seen is contained anyway.
            fresh: Its snapshot must contain every commit that was acknowledged anywhere before this call.
            lease: How long the home waits for a sign of life, e.g. "60s" (or seconds); default: the agent's.
            meta: Up to 1 KiB of own data (JSON), kept in the commit record.
            progress: Up to 4 KiB of text that the commit keeps with the label, such as the offsets of what
                was read: `Database.label` returns it. With progress a transaction without changes is
                committed, too.
            key: For several processes that work in one transaction. The caller chooses the key and never uses
                it again. Each process that begins with the same key receives the same transaction while it is
                open, as the first process has begun it: `min_csn`, `fresh` and `lease` of the others do not
                change it. All of them use the same home as long as that answers. Each keeps the transaction
                alive; one commits.

        Raises:
            LabelExistsError: The label, or this batch or a later one, was committed before; `csn` and `tid`
                of that run are in its details, and for streams `batch`, the newest one.
            BadRequestError: An argument is out of range; or a label of a streaming query without a batch, or
                the other way; or `key` was given with another label or isolation.
            TransactionClosedError: The transaction of this key accepts no statements any more.
            NoSuchCsnError: `min_csn` is above the end of the log.
            StandbyError: No replica has reached `min_csn` within its waiting bound.
        """
        request = BeginRequest(
            label=label,
            batch=batch,
            isolation=isolation,
            min_csn=min_csn,
            fresh=fresh,
            lease_s=seconds(lease),
            meta=None if meta is None else dict(meta),
            progress=progress,
            key=key,
        )
        if request == BeginRequest():
            return Transaction(self._connection, later=Later(self._tids, self._definitions))
        return self._begin(request)

    def _begin(self, request: BeginRequest) -> Transaction:
        return Transaction(self._connection, at=begin_at_home(self._connection, request))

    def _begin_fresh(self) -> Transaction:
        return self.begin(fresh=True)

    def read(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        params: Params = (),
        *,
        csn: int | str | None = None,
        at: datetime | int | str | None = None,
    ) -> pa.Table:
        """Return rows of a table at a separate snapshot, the newest one or that of `csn` or `at`.

        A table that keeps a longer history than others (`retention_s`) is read at a `csn` of it, too.
        Arguments and errors as in `Snapshot.scan` and `snapshot`.
        """
        return self._each(csn, at).read(table, columns, where, params)

    def export(
        self,
        table: str,
        folder: str | Path,
        *,
        csn: int | str | None = None,
        at: datetime | int | str | None = None,
    ) -> ExportResult:
        """Write a table into a folder as `Snapshot.export` does, at the newest CSN or `csn` or `at`."""
        with self.snapshot(csn, at=at) as snapshot:
            return snapshot.export(table, folder)

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        params: Params = (),
        *,
        csn: int | str | None = None,
        at: datetime | int | str | None = None,
    ) -> Scan:
        """Return a scan of a table as `Snapshot.scan` does; each of its methods reads at a separate snapshot.

        So without `csn` and `at` two of them may see different rows: open a snapshot for more than one.
        """
        return self._each(csn, at).scan(table, columns, where, params)

    def sql(
        self,
        sql: str,
        params: Params = (),
        *,
        csn: int | str | None = None,
        at: datetime | int | str | None = None,
    ) -> pa.Table:
        """Run one SELECT at a separate snapshot, the newest one or that of `csn` or `at`.

        Arguments and errors as in `Snapshot.sql` and `snapshot`.
        """
        return self._each(csn, at).sql(sql, params)

    def _each(self, csn: int | str | None, at: datetime | int | str | None) -> SnapshotEach:
        chosen = csn_or_name(csn)
        otherwise = WithoutPin(self._connection, chosen) if isinstance(chosen, int) else None
        return SnapshotEach(lambda: self.snapshot(csn, at=at), otherwise)

    def snapshot(
        self,
        csn: int | str | None = None,
        *,
        at: datetime | int | str | None = None,
        min_csn: int | None = None,
        lease: str | float | None = None,
    ) -> Snapshot:
        """Open a snapshot: all tables at one CSN, readable until it is closed, also with `with`.

        Args:
            csn: Exactly this CSN, also one below what this client has seen; or the name of a tag.
            at: The newest CSN whose effective time is not after this: a datetime with time zone, its ISO 8601
                text, or ms since 1970.
            min_csn: This CSN or a newer one.
            lease: How long it stays readable after this client's last sign of life, e.g. "60s" (or seconds);
                default: the agent's.

        Without `csn`, `at` and `min_csn`: the newest CSN that is applied on as many replicas as a commit has
        copies, and that contains everything this client has committed or read.

        Raises:
            NoSuchCsnError: Above the end of the log; `at` has not come yet.
            UnknownTagError: There is no tag of this name.
            SnapshotTooOldError: Below the horizon; `min_csn` in its details is the oldest that can be read.
            StandbyError: No replica has reached it within its waiting bound.
            BadRequestError: More than one of `csn` and `at`, or a datetime without time zone.
        """
        exact = csn is not None or at is not None
        min_csn = csn_or_none(min_csn, "min_csn")
        body = SnapshotRequest(
            csn=self._tagged(csn),
            at_ms=None if at is None else milliseconds(at),
            min_csn=min_csn if exact else self._connection.highest_csn.at_least(min_csn),
            ttl_s=seconds(lease),
        )
        holder, pin = self._connection.ask_and_tell("POST", "/snapshots", answer=SnapshotPin, body=body)
        return Snapshot(self._connection, holder, pin)

    def outcome(self, tid: str) -> Outcome:
        """Return the outcome of a transaction of any replica and client.

        BadRequestError when `tid` is no transaction id.
        """
        outcome = ask_outcome(self._connection, tid)
        self._connection.highest_csn.note(outcome.csn)
        return outcome

    def label(self, label: str) -> LabelStatus | None:
        """Return the newest commit under a label, by any client; None for a label that is free.

        The answer contains every commit that was acknowledged before the call. A label is free again some
        time after its last commit: `label_retention_s`, or `stream_label_retention_s` for the label of a
        streaming query.

        Raises:
            TooLargeError: The label is longer than `label_bytes_max`.
            BadRequestError: The label is empty.
            UnavailableError: No replica can answer now; or none knows the commit, and it keeps progress.
        """
        answer = self._connection.ask("GET", f"/labels/{segment(label)}", answer=LabelAnswer)
        if answer.tid is None:
            return None
        self._connection.highest_csn.note(answer.csn)
        time = instant(answer.time_ms)
        return LabelStatus(label, answer.batch, answer.tid, answer.csn, time, answer.progress)

    def status(self) -> StatusAnswer:
        """Return the state of the cluster as one replica sees it (docs/protocol.md, GET /status)."""
        return self._connection.ask("GET", "/status", answer=StatusAnswer)

    @property
    def membership(self) -> Membership:
        """The members of the cluster, to add, remove, replace, drain or strike replicas."""
        return Membership(self._connection)

    def transactions(self) -> RowList[TransactionAtHome]:
        """Return open and recently ended transactions of all replicas that answer, each with its `home`."""
        transactions: RowList[TransactionAtHome] = RowList()
        failed: list[UnavailableError] = []
        members = self._connection.members.in_order()
        for member in members:
            try:
                ask = self._connection.small("GET", "/transactions", answer=list[TransactionInfo])
                rows = ask(member)
            except UnavailableError as error:
                self._connection.members.note(member, error)
                failed.append(error)
                continue
            transactions += [TransactionAtHome(**msgspec.structs.asdict(row), home=member.id) for row in rows]
        if len(failed) == len(members) and failed:
            raise failed[0]
        return transactions

    def kill(self, tid: str) -> None:
        """Roll back an open transaction of any client; harmless when it is rolled back already.

        A commit that was requested is called off if it has no CSN yet. Only its home can do that. Its changes
        never become visible; its owner's next statement is refused.

        Raises:
            TransactionClosedError: It is committed (`csn` in its details).
            CommitUnknownError: Its commit was sent, and it is not known in time whether it is committed.
            UnknownTransactionError: It ended long ago, or with an earlier boot of its home: see `outcome`.
            UnavailableError: Its home does not answer; the transaction ends with its lease or its home.
            BadRequestError: `tid` is no transaction id, or no such replica exists.
        """
        home = self._connection.members.find(home_of(tid))
        try:
            self._connection.small("POST", f"/transactions/{segment(tid)}/kill", answer=EndAnswer)(home)
        except UnavailableError as error:
            self._connection.members.note(home, error)
            raise

    def raise_horizon(self, csn: int | None = None, *, drop_pins: bool = False) -> HorizonAnswer:
        """Raise the horizon: below it nothing can be read, and parts removed before it are deleted.

        Args:
            csn: The new horizon; None = as high as possible. The retention of history does not count.
            drop_pins: End the snapshots of clients that are below it.

        Returns:
            The horizon, and what keeps it from rising: open transactions hold it back, and replicas that
            have applied less.
        """
        body = HorizonRequest(csn, drop_pins)
        return self._connection.ask("POST", "/admin/horizon", answer=HorizonAnswer, body=body)

    def resolve_lost(
        self,
        part: str,
        *,
        confirm: bool = False,
        without: Sequence[str] = (),
        by: str = "",
        why: str = "",
    ) -> LostPart:
        """Say what is lost with a part that no replica holds; with `confirm`, declare it lost.

        No replica shows it then, at any CSN. `outcome` of its transaction raises DeclaredLostError.

        Args:
            part: The part that replicas wait for, as `status` shows it.
            confirm: Declare it lost; otherwise nothing changes.
            without: Replicas that do not answer, may hold it, and are left out.
            by: The operator, and in `why` the reason, for the log.

        Raises:
            BadRequestError: No kept record adds the part, or an operator or a reason is missing.
            RefusedError: A replica holds it, or one that does not answer is not named; nothing changed.
        """
        body = LostPartRequest(part, confirm, list(without), by, why)
        return self._connection.ask(
            "POST", "/admin/resolve-lost", answer=LostPart, body=body, timeout_s=_RESOLVE_S
        )

    def set_switch(self, name: str, value: str) -> dict[str, RowList[SwitchInfo]]:
        """Change how agents work until they are started again: on all replicas, or on the client's only one.

        Args:
            name: `collection`, `compaction`, `lease_sweep` (on, off), `lock_wait_s` (seconds) or `log_level`.
            value: The new value, as text.

        Returns:
            By replica all its switches.

        Raises:
            BadRequestError: No switch has this name, or the value is not one of its values.
            UnavailableError: Replicas did not answer (`replicas`); the switch is set on the others (`set`).
        """
        body = SwitchRequest(name, value)
        done: dict[str, RowList[SwitchInfo]] = {}
        failed: dict[str, str] = {}
        for member in self._connection.members.in_order():
            call = self._connection.small("POST", "/admin/switches", answer=SwitchesAnswer, body=body)
            try:
                done[member.id] = RowList(call(member).switches)
            except UnavailableError as error:
                self._connection.members.note(member, error)
                failed[member.id] = error.message
        if failed:
            reasons = "; ".join(f"{replica}: {why}" for replica, why in sorted(failed.items()))
            raise UnavailableError(
                f"the switch {name} is set on {', '.join(sorted(done)) or 'no replica'}, and these replicas "
                f"did not answer ({reasons}); repeat the call",
                replicas=sorted(failed),
                set=sorted(done),
            )
        return done

    def optimize(
        self, table: str, partition: Mapping[str, Any] | None = None, *, timeout_s: float = 600.0
    ) -> OptimizeAnswer:
        """Merge small parts until each partition has at most one; no row changes, at any CSN.

        Args:
            table: `name` or `namespace.name`.
            partition: The only partition to merge: every partition column with its value; None is null.
            timeout_s: Return after this time at the latest, and begin no further merge then.

        Raises:
            UnknownTableError, BadRequestError: No such table, or `partition` names no partition.
        """
        body = OptimizeRequest(
            table=table,
            partition=None if partition is None else plain(partition),
            timeout_s=timeout_s,
            min_csn=self._connection.highest_csn.at_least(None),
        )
        patience_s = timeout_s + self._connection.transport.timeouts.answer_s
        answer = self._connection.ask(
            "POST", "/admin/optimize", answer=OptimizeAnswer, body=body, timeout_s=patience_s
        )
        self._connection.highest_csn.note(answer.csn)
        return answer

    def explain(self, tid: str) -> Explanation:
        """Return the history of a transaction, from its home if that answers.

        It shows state, record, parts, their holders, and what it waits for (docs/protocol.md, GET /explain).
        """
        path = f"/explain/{segment(tid)}"
        return self._connection.ask("GET", path, answer=Explanation, first=home_of(tid))

    def audit(self, *, deep: bool = False, timeout_s: float = TIMEOUT_S) -> AuditReport:
        """Check that files, catalog, log and locks of every replica agree, and report every difference.

        Every replica audits itself (GET /audit), then all are compared at one CSN. Nothing is changed, except
        that damaged parts are fetched again from another replica.

        Args:
            deep: Read the bytes of all parts and compare them with their checksums.
            timeout_s: How long to wait for each replica.

        Raises:
            UnavailableError: No replica answers. If some answer, the report names those that do not.
        """
        return audit(self._connection, self.snapshot, deep=deep, timeout_s=timeout_s)

    @property
    def seen_csn(self) -> int:
        """The highest CSN that this client has committed or read, 0 for none.

        Another client passes it as `min_csn` to see at least the same state.
        """
        return self._connection.highest_csn.at_least(None) or 0

    def close(self) -> None:
        """Close the connections; open transactions and snapshots are not renewed, and end with the lease."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _discovered(transport: Transport, zookeeper: str) -> list[str]:
    """Return the addresses of all agents of a cluster, from ZooKeeper; errors as `discovery.agents`."""
    timeout_s = transport.timeouts.answer_s
    with transport.waits.during(lambda: f"ZooKeeper at {zookeeper}, for at most {timeout_s:.0f} s"):
        return agents(zookeeper, timeout_s=timeout_s)
