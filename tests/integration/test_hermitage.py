"""The ten cases of Hermitage (Martin Kleppmann's), as ClickHouse's 01167_isolation_hermitage.sh has them.

The sessions are clients of different replicas. Each case begins with the rows 1: 10 and 2: 20, in two parts.

    case                 snapshot                   read_committed             serializable
    G0 dirty write       2nd update refused         2nd update refused         2nd update refused
    G1a aborted read     prevented                  prevented                  prevented
    G1b intermediate     prevented                  prevented                  prevented
    G1c circular flow    prevented; both commit     prevented; both commit     prevented; one commits
    OTV                  2nd update refused         2nd update refused         2nd update refused
    PMP read             prevented                  POSSIBLE                   prevented
    PMP write            delete refused             delete refused             delete refused
    P4 lost update       2nd update refused         2nd update refused         2nd update refused
      behind the commit  refused                    POSSIBLE                   refused
    G-single read skew   prevented                  POSSIBLE                   prevented
      and then a write   refused                    POSSIBLE                   refused
    G2-item write skew   POSSIBLE                   POSSIBLE                   one commits
    G2 by a predicate    POSSIBLE                   POSSIBLE                   one commits

ClickHouse differs: its UPDATE is a mutation of the whole table, so any two updates that overlap conflict.
Here two statements conflict only if they take rows out of the same part. The case G1c shows it: ClickHouse
refuses the second update, although the first one changes another row. ClickHouse has neither of the levels
read committed and serializable.

A refused statement fails at once, while the other transaction is still open: no statement waits for a lock,
so there are no deadlocks. A refused transaction takes a rollback only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.clusters.cluster import QUICK, ClusterFactory
from tidelock.client import Database, Transaction
from tidelock.errors import SerializationConflictError, TransactionClosedError

SCHEMA = pa.schema([(name, pa.int64()) for name in ("c", "id", "value")])
BEFORE = {1: 10, 2: 20}
NUMBERS = itertools.count(1)

pytestmark = pytest.mark.parametrize(
    "level",
    [
        "snapshot",
        *(pytest.param(level, marks=pytest.mark.slow) for level in ("serializable", "read_committed")),
    ],
)


@pytest.fixture(scope="module")
def sessions(module_cluster: ClusterFactory) -> Iterator[list[Database]]:
    """A session at each of three replicas, and the table."""
    local = module_cluster(settings={**QUICK, "lock_wait_s": 0.0})
    found = [local.connect(replica) for replica in local.replicas]
    made = found[0].create_table("test", SCHEMA, partition_by=["c"], properties={"compaction": "off"})
    for db in found:
        db.table("test", csn=made["csn"])  # from now on the session knows the table
    yield found
    for db in found:
        db.close()


class Case:
    """Two rows in two parts, in a partition of their own; transactions `x` and `y` at different replicas."""

    def __init__(self, sessions: list[Database], level: str) -> None:
        self.number = next(NUMBERS)
        self._sessions, self._level = sessions, level
        with sessions[self.number % 3].begin(fresh=True) as tx:  # at once: each insert is a part
            for key, value in BEFORE.items():
                self.insert(tx, key, value)
            tx.commit(wait="all")
        self.x, self.y = self.begin(0), self.begin(1)

    def begin(self, session: int) -> Transaction:
        """Begin at another replica than the sessions with other numbers."""
        db = self._sessions[(self.number + session) % 3]
        return db.begin(isolation=self._level)

    def insert(self, tx: Transaction, key: int, value: int) -> None:
        """Insert a row."""
        tx.insert("test", pa.table([[self.number], [key], [value]], SCHEMA))

    def put(self, tx: Transaction, key: int, value: int) -> None:
        """Update one row."""
        tx.update("test", {"value": value}, where="c = ? and id = ?", params=[self.number, key])

    def read(self, tx: Transaction | Database, where: str = "true") -> dict[int, int]:
        """Return the rows of the case for which a condition is true."""
        rows = tx.read("test", ["id", "value"], f"c = ? and ({where})", [self.number])
        return dict(sorted(zip(rows["id"].to_pylist(), rows["value"].to_pylist(), strict=True)))

    def commit(self, tx: Transaction) -> None:
        """Commit, and wait until every replica shows it."""
        tx.commit(wait="all")

    def ends(self, *refused: Transaction, rows: dict[int, int]) -> None:
        """Require that refused transactions take a rollback only, and that each replica has these rows."""
        for tx in refused:
            with pytest.raises(TransactionClosedError):
                tx.read("test")
            with pytest.raises(TransactionClosedError):
                tx.commit()
            tx.rollback()
        for db in self._sessions:
            assert self.read(db) == rows


@pytest.fixture
def case(sessions: list[Database], level: str) -> Case:
    """A case of its own."""
    return Case(sessions, level)


def test_g0_dirty_write_is_refused(case: Case) -> None:
    """The second transaction that writes a row is refused, so writes of two transactions do not mix."""
    case.put(case.x, 1, 11)
    with pytest.raises(SerializationConflictError) as refused:
        case.put(case.y, 1, 12)
    assert refused.value.details["holder"] == case.x.tid
    case.put(case.x, 2, 21)
    case.commit(case.x)
    with pytest.raises(TransactionClosedError):
        case.put(case.y, 2, 22)
    case.ends(case.y, rows={1: 11, 2: 21})


def test_g1a_aborted_read_sees_nothing(case: Case) -> None:
    """Rows of a transaction that is rolled back are seen by no other transaction."""
    case.put(case.x, 1, 101)
    assert case.read(case.y) == BEFORE
    case.put(case.x, 1, 11)
    case.x.rollback()
    assert case.read(case.y) == BEFORE
    assert case.y.commit().csn is None
    case.ends(rows=BEFORE)


def test_g1b_intermediate_read_sees_nothing(case: Case, level: str) -> None:
    """A value that its transaction has changed again is seen by no other transaction."""
    case.put(case.x, 1, 101)
    assert case.read(case.y) == BEFORE
    case.put(case.x, 1, 11)
    assert case.read(case.x) == {1: 11, 2: 20}
    case.commit(case.x)
    assert case.read(case.y) == ({1: 11, 2: 20} if level == "read_committed" else BEFORE)
    case.y.commit()
    case.ends(rows={1: 11, 2: 20})


def test_g1c_circular_information_flow(case: Case, level: str) -> None:
    """Two transactions that write different parts do not conflict, and do not see each other's rows.

    If they are serializable, the second one is refused: each has searched the part that the other changed.
    """
    case.put(case.x, 1, 11)
    case.put(case.y, 2, 22)
    assert case.read(case.x) == {1: 11, 2: 20}
    assert case.read(case.y) == {1: 10, 2: 22}
    case.commit(case.x)
    if level == "serializable":
        with pytest.raises(SerializationConflictError):
            case.y.commit()
        case.ends(rows={1: 11, 2: 20})
    else:
        case.commit(case.y)
        case.ends(rows={1: 11, 2: 22})


def test_otv_observed_transaction_vanishes(case: Case, level: str) -> None:
    """Rows of a commit that a transaction has seen do not vanish with a later commit."""
    observer = case.begin(2)
    case.put(case.x, 1, 11)
    case.put(case.x, 2, 19)
    with pytest.raises(SerializationConflictError):
        case.put(case.y, 1, 12)
    case.commit(case.x)
    seen = {1: 11, 2: 19} if level == "read_committed" else BEFORE
    assert case.read(observer) == seen
    with pytest.raises(TransactionClosedError):
        case.put(case.y, 2, 18)
    assert case.read(observer) == seen
    observer.commit()
    case.ends(case.y, rows={1: 11, 2: 19})


def test_pmp_predicate_many_preceders(case: Case, level: str) -> None:
    """A repeated condition finds the same rows, without rows that were inserted meanwhile."""
    assert case.read(case.x, "value = 30") == {}
    case.insert(case.y, 3, 30)
    case.commit(case.y)
    assert case.read(case.x, "value % 3 = 0") == ({3: 30} if level == "read_committed" else {})
    case.x.commit()
    case.ends(rows={**BEFORE, 3: 30})


def test_pmp_for_writes_is_refused(case: Case) -> None:
    """A delete by a condition is refused if an open transaction changes its rows."""
    case.x.update("test", {"value": "value + 10"}, where="c = ?", params=[case.number])
    with pytest.raises(SerializationConflictError):
        case.y.delete("test", where="c = ? and value = 20", params=[case.number])
    case.commit(case.x)
    case.ends(case.y, rows={1: 20, 2: 30})


def test_p4_lost_update_is_refused(case: Case) -> None:
    """If two transactions read a row and write it, the second write is refused."""
    assert case.read(case.x, "id = 1") == case.read(case.y, "id = 1") == {1: 10}
    case.put(case.x, 1, 11)
    with pytest.raises(SerializationConflictError):
        case.put(case.y, 1, 11)
    case.commit(case.x)
    case.ends(case.y, rows={1: 11, 2: 20})


@pytest.mark.slow
def test_p4_lost_update_behind_the_commit(case: Case, level: str) -> None:
    """A write after the other commit is refused; read committed sees and overwrites it."""
    assert case.read(case.x, "id = 1") == case.read(case.y, "id = 1") == {1: 10}
    case.put(case.x, 1, 11)
    case.commit(case.x)
    if level == "read_committed":
        case.put(case.y, 1, 12)
        case.commit(case.y)
        case.ends(rows={1: 12, 2: 20})
    else:
        with pytest.raises(SerializationConflictError):
            case.put(case.y, 1, 12)
        case.ends(case.y, rows={1: 11, 2: 20})


def test_g_single_read_skew(case: Case, level: str) -> None:
    """Two rows that were changed together are seen together."""
    assert case.read(case.x, "id = 1") == {1: 10}
    assert case.read(case.y) == BEFORE
    case.put(case.y, 1, 12)
    case.put(case.y, 2, 18)
    case.commit(case.y)
    assert case.read(case.x, "id = 2") == {2: 18 if level == "read_committed" else 20}
    case.x.commit()
    case.ends(rows={1: 12, 2: 18})


@pytest.mark.slow
def test_g_single_read_skew_and_a_write(case: Case, level: str) -> None:
    """A write after such a read is refused; read committed sees and changes the new row."""
    assert case.read(case.x, "id = 1") == {1: 10}
    case.put(case.y, 1, 12)
    case.put(case.y, 2, 18)
    case.commit(case.y)
    if level == "read_committed":
        case.x.delete("test", where="c = ? and value = 18", params=[case.number])
        case.commit(case.x)
        case.ends(rows={1: 12})
    else:
        with pytest.raises(SerializationConflictError):
            case.x.delete("test", where="c = ? and value = 20", params=[case.number])
        case.ends(case.x, rows={1: 12, 2: 18})


@pytest.mark.slow
def test_g2_item_write_skew(case: Case, level: str) -> None:
    """Two transactions read both rows, and each changes another one."""
    assert case.read(case.x) == case.read(case.y) == BEFORE
    case.put(case.x, 1, 11)
    case.put(case.y, 2, 21)
    case.commit(case.x)
    if level == "serializable":
        with pytest.raises(SerializationConflictError):
            case.y.commit()
        case.ends(rows={1: 11, 2: 20})
    else:
        case.commit(case.y)
        case.ends(rows={1: 11, 2: 21})


def test_g2_predicate_write_skew(case: Case, level: str) -> None:
    """Two transactions find no row for a condition, and each inserts one."""
    assert case.read(case.x, "value % 3 = 0") == case.read(case.y, "value % 3 = 0") == {}
    case.insert(case.x, 3, 30)
    case.insert(case.y, 4, 42)
    case.commit(case.x)
    if level == "serializable":
        with pytest.raises(SerializationConflictError):
            case.y.commit()
        case.ends(rows={**BEFORE, 3: 30})
    else:
        case.commit(case.y)
        case.ends(rows={**BEFORE, 3: 30, 4: 42})
