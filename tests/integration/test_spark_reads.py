"""Spark reads snapshots through real readers: right rows or a loud error, on every kind of session.

The sessions ignore missing and corrupt files, as on many clusters; these settings must not affect the reads.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.replicas.datadir import DataDir
from tests.support.replicas.open_port import OpenPort
from tests.support.replicas.readers import ReaderHost
from tests.support.spark.process import SparkJobError, SparkProcess
from tests.support.waiting import eventually
from tidelock.csnlog.core.ids import PartId
from tidelock.read_route import SILENCE_S, Replica, route
from tidelock.replica_agent.readers import counters
from tidelock.replica_agent.readers.signs import SIGN_S

pytestmark = pytest.mark.spark

CITIES = ["Zürich", "a/b%c", "007", None, "東京 #1", "true", "2024-01-01", 'q"?*:=\\[]{}^', "..", "a b+c&d;e"]
ORDERS = pa.schema([("id", pa.int64()), ("city", pa.string()), ("name", pa.string())])
ITEMS = pa.schema([("order_id", pa.int64()), ("price", pa.decimal128(12, 2))])
NUMBERS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
TYPES = {
    "a_boolean": (pa.bool_(), True),
    "a_tinyint": (pa.int8(), -7),
    "a_smallint": (pa.int16(), -300),
    "an_int": (pa.int32(), 1 << 30),
    "a_bigint": (pa.int64(), 1 << 60),
    "a_float": (pa.float32(), 0.5),
    "a_double": (pa.float64(), 0.1),
    "a_string": (pa.string(), "Grüße"),
    "a_binary": (pa.binary(), b"\x00\xff"),
    "an_old_date": (
        pa.date32(),
        dt.date(1500, 3, 1),
    ),  # before the calendar reform: a LEGACY read would shift this date
    "a_timestamp": (pa.timestamp("us", "UTC"), dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)),
    "a_timestamp_ntz": (pa.timestamp("us"), dt.datetime(2024, 7, 1, 12, 0, 0, 5)),  # noqa: DTZ001 - it has no zone
    "a_decimal": (pa.decimal128(38, 10), Decimal("1234567890123456789.0123456789")),
    "by_date": (pa.date32(), dt.date(2024, 2, 29)),
    "by_int": (pa.int32(), 7),
}
PARTS, ROWS = 40, 40_000
#: Sessions of the other kinds take a minute or two: they are among the long runs.
KINDS = {"classic": (), "cluster": (pytest.mark.slow,), "connect": (pytest.mark.slow,)}


def _orders(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + len(CITIES)), "city": CITIES, "name": CITIES}, schema=ORDERS)


def _items(count: int) -> pa.Table:
    return pa.table({"order_id": range(count), "price": [Decimal("1.25")] * count}, schema=ITEMS)


@dataclass(frozen=True)
class World:
    """The data, and the right answer of a query over all numbers."""

    data: DataDir
    numbers: list[list[int]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Tables at CSN 2; rows at 3; more of two tables at 4; a part of each of these removed at 5."""
    data = DataDir(tmp_path_factory.mktemp("spark") / "origin")
    data.create_table(2, "orders", ORDERS, partition_by=["city"])
    data.create_table(2, "sales.items", ITEMS)
    data.create_table(2, "nothing", ORDERS, partition_by=["city"])
    types = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
    data.create_table(2, "types", types, partition_by=["by_date", "by_int"])
    data.create_table(2, "numbers", NUMBERS)
    row = {name: [value, None] for name, (_, value) in TYPES.items()}
    data.insert(3, {"default.types": pa.table(row, schema=types)})
    data.insert(3, {"default.orders": _orders(0), "sales.items": _items(10)}, pack=True)
    values = np.random.default_rng(1).integers(0, 1 << 40, (PARTS, ROWS))
    for number in range(PARTS):
        ids = range(number * ROWS, (number + 1) * ROWS)
        data.insert(3, {"default.numbers": pa.table({"id": ids, "v": values[number]}, schema=NUMBERS)})
    data.insert(4, {"default.orders": _orders(100), "sales.items": _items(20)})
    for table in ("default.orders", "sales.items"):
        data.remove(5, data.parts(table)[0].part)
    return World(data, [[PARTS * ROWS, sum(range(PARTS * ROWS)), int(values.sum())]])


#: Places of a file that are read one after the other.
PLACES = [1000, 50_000, 90_000]
NUMBERS_QUERY = "SELECT count(*), sum(id), sum(v) FROM numbers"


class Pair:
    """Two replicas: their directories and their readers, `r1` and `r2`."""

    def __init__(self, origin: DataDir, folder: Path) -> None:
        self.dirs = [origin.copy(folder / name) for name in ("r1", "r2")]
        with ThreadPoolExecutor() as starting:
            self.hosts = list(starting.map(_host, self.dirs))

    @property
    def status(self) -> list[dict[str, Any]]:
        """Return the rows of an agent's status."""
        return [
            {"id": host.replica, "data": host.address, "alive": True, "state": "serving", "snapshot_csn": 5}
            for host in self.hosts
        ]

    def served(self, index: int) -> dict[str, int]:
        """Return the counters of one replica's readers."""
        return counters.read(self.dirs[index].path / "run")

    def attach(self, spark: SparkProcess, **options: Any) -> Any:
        """Attach all tables from these replicas, pinned to the first."""
        self.connect(spark)
        return spark.call("attach", **({"replica": "r1"} | options))

    def connect(
        self, spark: SparkProcess, replicas: list[dict[str, Any]] | None = None, newest: int = 5
    ) -> None:
        """Let the session talk to these replicas."""
        rows = self.status if replicas is None else replicas
        spark.call("connect", data_dir=str(self.dirs[0].path), replicas=rows, read_wait_s=1.0, newest=newest)

    def close(self) -> None:
        """End the readers."""
        for host in self.hosts:
            host.close()


def _host(data: DataDir) -> ReaderHost:
    return ReaderHost(data.path, data.path.name, read_wait_s=1.0)


@pytest.fixture(scope="module")
def good(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two intact replicas; no test changes them."""
    with contextlib.closing(Pair(world.data, tmp_path_factory.mktemp("good"))) as pair:
        yield pair


@pytest.fixture
def pair(world: World, tmp_path: Path) -> Iterator[Pair]:
    """Two replicas for one test, which may damage them."""
    with contextlib.closing(Pair(world.data, tmp_path)) as pair:
        yield pair


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=marks) for kind, marks in KINDS.items()])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A session of each kind; pytest runs all tests of one kind before it starts the next."""
    with SparkProcess(request.param, tmp_path_factory.mktemp(request.param)) as session:
        yield session


def only(*kinds: str) -> pytest.MarkDecorator:
    """Run the test on these kinds of sessions."""
    chosen = [pytest.param(kind, marks=KINDS[kind]) for kind in kinds]
    return pytest.mark.parametrize("spark", chosen, indirect=True, scope="module")


# -- right rows ----------------------------------------------------------------------------------------------


def test_rows_at_a_csn(spark: SparkProcess, good: Pair) -> None:
    """Every table shows exactly the rows of the one CSN, in the order of its own columns."""
    expected = {
        3: [[number, city, city] for number, city in enumerate(CITIES)],
        4: [[number, city, city] for first in (0, 100) for number, city in enumerate(CITIES, first)],
    }
    for csn, items in ((3, 10), (4, 30), (5, 20)):
        assert good.attach(spark, csn=csn)["csn"] == csn
        rows = spark.call("read", table="orders", order_by="id")
        assert rows == expected[min(csn, 4)][1 if csn == 5 else 0 :]
        assert spark.sql("SELECT count(*), sum(price) FROM sales_items") == [
            [items, str(items * Decimal("1.25"))]
        ]


@only("classic", "connect")
def test_partition_values_select_their_own_rows(spark: SparkProcess, good: Pair) -> None:
    """Each value selects its own rows: strings stay strings, null is null, hostile names work."""
    good.attach(spark, csn=4)
    for number, city in enumerate(CITIES):
        condition = "city IS NULL" if city is None else "city = '" + city.replace("\\", "\\\\") + "'"
        rows = spark.sql(f"SELECT id, city FROM orders WHERE {condition} ORDER BY id")
        assert rows == [[number, city], [100 + number, city]]


@only("classic", "connect")
def test_every_column_type_arrives_as_it_was_defined(spark: SparkProcess, good: Pair) -> None:
    """All column types arrive as the table defines them, whatever the session's settings are."""
    good.attach(spark)
    assert spark.call("schema", table="types") == [
        ["a_boolean", "boolean"],
        ["a_tinyint", "tinyint"],
        ["a_smallint", "smallint"],
        ["an_int", "int"],
        ["a_bigint", "bigint"],
        ["a_float", "float"],
        ["a_double", "double"],
        ["a_string", "string"],
        ["a_binary", "binary"],
        ["an_old_date", "date"],
        ["a_timestamp", "timestamp"],
        ["a_timestamp_ntz", "timestamp_ntz"],
        ["a_decimal", "decimal(38,10)"],
        ["by_date", "date"],
        ["by_int", "int"],
    ]
    shown = {"a_binary": "hex(a_binary)", "a_timestamp": "unix_micros(a_timestamp)"}
    columns = ", ".join(shown.get(name, f"string({name})") for name in TYPES)
    (nulls,) = spark.sql(f"SELECT {columns} FROM types WHERE a_boolean IS NULL")
    assert nulls == [None] * len(TYPES)
    (row,) = spark.sql(f"SELECT {columns} FROM types WHERE by_int = 7 AND by_date = DATE '2024-02-29'")
    assert row == [
        *("true", "-7", "-300", str(1 << 30), str(1 << 60), "0.5", "0.1", "Grüße", "00FF", "1500-03-01"),
        int(dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC).timestamp() * 1_000_000),
        *("2024-07-01 12:00:00.000005", "1234567890123456789.0123456789", "2024-02-29", "7"),
    ]


@only("classic", "connect")
def test_an_empty_table_has_columns_and_no_rows(spark: SparkProcess, good: Pair) -> None:
    """A table without parts has its columns and no rows."""
    good.attach(spark)
    assert spark.call("schema", table="nothing") == [["id", "bigint"], ["city", "string"], ["name", "string"]]
    assert spark.sql("SELECT * FROM nothing WHERE city = 'x' OR id > 3") == []


@only("classic", "connect")
def test_the_plan_is_that_of_a_native_reader(spark: SparkProcess, good: Pair) -> None:
    """Columns are pruned, filters and partition filters pushed, the vectorised reader is used."""
    good.attach(spark)
    plan = spark.call("explain", query="SELECT id FROM orders WHERE city = '007' AND id > 2")
    assert "ReadSchema: struct<id:bigint>" in plan
    assert "GreaterThan(id,2)" in plan.partition("PushedFilters:")[2].partition("\n")[0]
    assert "= 007)" in plan.partition("PartitionFilters:")[2].partition("\n")[0]
    assert "Batched: true" in plan
    assert "prunedout" not in plan


@only("classic", "connect")
def test_views_follow_the_snapshot(spark: SparkProcess, good: Pair) -> None:
    """A refresh moves all views to one newer CSN, closing drops them; one pin is open at a time."""
    good.connect(spark, newest=3)
    spark.call("attach", tables=["orders", "sales.items"], prefix="t_")
    assert spark.call("views") == ["t_orders", "t_sales_items"]
    query = "SELECT (SELECT count(*) FROM t_orders), (SELECT count(*) FROM t_sales_items)"
    assert spark.sql(query) == [[10, 10]]
    assert spark.call("refresh", newest=4) == 4
    assert spark.sql(query) == [[20, 30]]
    assert spark.call("open_pins") == [4]
    spark.call("detach")
    assert spark.call("views") == []
    assert spark.call("open_pins") == []


# -- damage, and replicas that fail
# ---------------------------------------------------------------------------


@pytest.mark.slow
def test_damage_on_every_replica_is_an_error(spark: SparkProcess, pair: Pair) -> None:
    """A flipped bit in a column chunk on all replicas fails the query, on every kind of session."""
    pair.attach(spark)
    _flip(pair, 0, 1)
    with pytest.raises(SparkJobError):
        spark.sql(NUMBERS_QUERY)


@pytest.mark.slow
def test_damage_on_one_replica_is_read_elsewhere(spark: SparkProcess, pair: Pair, world: World) -> None:
    """With a flipped bit on the pinned replica the other one serves the rows, and the damage is reported."""
    pair.attach(spark)
    damaged = _flip(pair, 0)
    assert spark.sql(NUMBERS_QUERY) == world.numbers
    assert pair.hosts[0].event()["corrupt"] == damaged
    assert pair.served(1)["bytes"] > 0


def _flip(pair: Pair, *replicas: int) -> PartId:
    """Damage one bit of a part of `numbers`, in the middle of the chunk of `v`; return the part."""
    part = pair.dirs[0].parts("default.numbers")[PARTS // 2]
    for replica in replicas:
        pair.dirs[replica].flip_bit(part, part.length * 3 // 4)
    return part.part


def _remove_file(pair: Pair) -> None:
    for data in pair.dirs:
        part = data.parts("default.numbers")[7]
        assert part.file is not None
        (data.path / part.file).unlink()


def _raise_horizon(pair: Pair) -> None:
    for data in pair.dirs:
        data.set(horizon=6, snapshot_csn=6)


def _drain(pair: Pair) -> None:
    for host in pair.hosts:
        host.start_drain()
        assert host.event() == {"drained": True}


def _break_catalog(pair: Pair) -> None:
    for data in pair.dirs:
        with data.sql() as db:
            db.execute("ALTER TABLE parts RENAME TO gone")


def _kill_all(pair: Pair) -> None:
    for host in pair.hosts:
        host.kill()


@only("classic")
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_remove_file, "whole|damaged"),
        (_raise_horizon, "horizon"),
        (_drain, "stopping"),
        (_break_catalog, "failed to answer"),
        (_kill_all, "refused"),
    ],
)
@pytest.mark.few(1)
def test_what_no_replica_can_serve_is_an_error(
    spark: SparkProcess, pair: Pair, harm: Callable[[Pair], None], message: str
) -> None:
    """A snapshot that cannot be served after planning is an error with the reason, never fewer rows."""
    pair.attach(spark)
    harm(pair)
    for query in (NUMBERS_QUERY, "SELECT count(*) FROM orders WHERE id >= 0"):
        if harm is _remove_file and "orders" in query:
            continue
        with pytest.raises(SparkJobError, match=message):
            spark.sql(query)


@only("classic")
@pytest.mark.slow
def test_a_csn_that_cannot_be_planned_is_an_error(spark: SparkProcess, pair: Pair) -> None:
    """Attaching fails with the reason if the CSN is too old, too new, or not applied by any replica."""
    for data in pair.dirs:
        data.set(horizon=4)
    with pytest.raises(SparkJobError, match="below the horizon"):
        pair.attach(spark, csn=3)
    with pytest.raises(SparkJobError, match="the log ends"):
        pair.attach(spark, csn=9)
    for host in pair.hosts:
        host.say("standby", "replica is behind")
    with pytest.raises(SparkJobError, match="is behind"):
        pair.attach(spark, csn=9)
    assert spark.call("open_pins") == []


@only("classic")
@pytest.mark.parametrize("harm", [_raise_horizon, _break_catalog])
@pytest.mark.few(1)
def test_raw_paths_lose_nothing_silently(
    spark: SparkProcess, pair: Pair, harm: Callable[[Pair], None]
) -> None:
    """A refused CSN is an error also without the helpers, in a session that ignores damaged files."""
    path = f"webhdfs://{pair.hosts[0].address}/snapshots/5/default/numbers"
    spark.call("raw_list", path=path, view="raw_numbers")
    assert spark.sql("SELECT count(*) FROM raw_numbers") == [[PARTS * ROWS]]
    harm(pair)
    with pytest.raises(SparkJobError, match="AccessControlException"):
        spark.sql("SELECT sum(v) FROM raw_numbers")
    with pytest.raises(SparkJobError, match="AccessControlException"):
        spark.call("raw", path=path)


def _in_mid_job(pair: Pair, spark: SparkProcess, signal_number: signal.Signals) -> None:
    """Begin the query over all numbers and signal the first replica while it is being read from it."""
    before = pair.served(0)["opens"]
    spark.send("sql", query=NUMBERS_QUERY)
    eventually(lambda: pair.served(0)["opens"] >= before + 8)
    # Stopped first, so that reads are certainly running when it ends.
    pair.hosts[0].signal(signal.SIGSTOP)
    if signal_number is signal.SIGKILL:
        pair.hosts[0].kill()


@pytest.mark.scenario("S65")
@only("classic", "cluster")
@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
def test_a_replica_that_fails_in_mid_job(
    spark: SparkProcess, pair: Pair, world: World, signal_number: signal.Signals
) -> None:
    """A job whose replica is killed or frozen during its reads gets the same rows from the other one."""
    pair.attach(spark)
    _in_mid_job(pair, spark, signal_number)
    assert spark.receive() == world.numbers
    assert pair.served(0)["bytes"] > 0
    assert pair.served(1)["bytes"] > 0


@only("classic")
@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_without_failover_the_job_fails(
    spark: SparkProcess, pair: Pair, signal_number: signal.Signals
) -> None:
    """With failover=False nothing is read from another replica: the job fails."""
    pair.attach(spark, failover=False)
    _in_mid_job(pair, spark, signal_number)
    with pytest.raises(SparkJobError):
        spark.receive()
    assert pair.served(1)["opens"] == 0


def _seek(spark: SparkProcess, one: OpenPort, two: OpenPort) -> None:
    """Read some bytes at three places of a file, as Spark does: with Hadoop's client, at two replicas."""
    replicas = [Replica(port.name, port.address) for port in (one, two)]
    to = route(replicas, {"read_wait_s": 1.0}, failover=True)
    spark.call("seek", path=f"webhdfs://{to.authority}/file", options=to.options, places=PLACES)


@only("classic")
def test_a_replica_that_freezes_in_the_middle_of_a_file_is_waited_for_twice(spark: SparkProcess) -> None:
    """Hadoop's client asks it again after the seek that failed, once, and then the next one: no third wait.

    `SILENCE_S` is chosen by that: twice it is below the time for which a reader may stand still.
    """
    asked: list[tuple[str, int | None]] = []
    with OpenPort("r1", asked, freezes_after=2) as frozen, OpenPort("r2", asked) as other:
        _seek(spark, frozen, other)
    first, middle, last = PLACES
    assert asked == [
        ("r1", None),
        ("r1", first),
        ("r1", middle),
        ("r1", middle),
        ("r2", middle),
        ("r2", last),
    ]


@only("classic")
def test_a_replica_that_freezes_before_a_file_is_opened_is_waited_for_once(spark: SparkProcess) -> None:
    """The next one answers this request, and all that follow."""
    asked: list[tuple[str, int | None]] = []
    with OpenPort("r1", asked, freezes_after=0) as frozen, OpenPort("r2", asked) as other:
        _seek(spark, frozen, other)
    assert [name for name, _ in asked] == ["r1", *["r2"] * (1 + len(PLACES))]


@only("classic")
@pytest.mark.slow
def test_a_replica_that_is_only_slow_keeps_its_readers(spark: SparkProcess) -> None:
    """Each answer takes longer than a frozen replica is waited for; signs of life come before it."""
    asked: list[tuple[str, int | None]] = []
    signs = round(2 * SILENCE_S / SIGN_S)
    with OpenPort("r1", asked, signs=signs) as slow, OpenPort("r2", asked) as other:
        _seek(spark, slow, other)
    assert {name for name, _ in asked} == {"r1"}


@only("classic")
@pytest.mark.slow
def test_a_pinned_replica_serves_everything(spark: SparkProcess, pair: Pair, world: World) -> None:
    """Pinned reads go to their replica as long as it answers, planning included."""
    pair.attach(spark, replica="r2")
    assert spark.sql(NUMBERS_QUERY) == world.numbers
    assert not any(pair.served(0).values())


@only("classic")
def test_a_dead_replica_is_passed_over(spark: SparkProcess, pair: Pair, world: World) -> None:
    """Attaching while the pinned replica is down reads from the other one."""
    pair.hosts[0].kill()
    pair.attach(spark)
    assert spark.sql(NUMBERS_QUERY) == world.numbers


@only("classic")
def test_the_default_csn_is_one_that_the_replica_has(spark: SparkProcess, good: Pair) -> None:
    """A lagging pinned replica gives its own CSN, a dead one is not waited for; a session never goes back."""
    lagging, dead = good.status, good.status
    lagging[0] |= {"snapshot_csn": 4}
    dead[0] |= {"snapshot_csn": 4, "alive": False}
    good.connect(spark, replicas=lagging)
    assert spark.call("attach", replica="r1")["csn"] == 4
    assert spark.call("refresh", newest=5) == 5  # the client saw 5 at its first request
    assert spark.call("open_pins") == [5]
    good.connect(spark, replicas=dead)
    assert spark.call("attach", replica="r1")["csn"] == 5


@only("classic")
def test_bad_arguments_are_named_and_pin_nothing(spark: SparkProcess, good: Pair) -> None:
    """Unknown replicas and tables are named, and nothing stays pinned."""
    for options, message in (
        ({"replica": "r9"}, r"BadRequestError.*r9.*r1, r2"),
        ({"tables": ["orders", "nope"]}, r"UnknownTableError.*default\.nope"),
    ):
        with pytest.raises(SparkJobError, match=message):
            good.attach(spark, **options)
    assert spark.call("open_pins") == []
    good.attach(spark, tables=["orders"])
    with pytest.raises(SparkJobError, match=r"UnknownTableError.*default\.orders"):
        spark.call("read", table="numbers", order_by="id")
    spark.call("detach")
    with pytest.raises(SparkJobError, match="TransactionClosedError"):
        spark.call("read", table="orders", order_by="id")


@only("classic", "connect")
def test_the_session_keeps_its_own_name_services(spark: SparkProcess, good: Pair) -> None:
    """The name service of the replicas is added to the cluster's own, and does not replace it."""
    options = good.attach(spark)["options"]
    assert options["dfs.nameservices"].split(",")[0] == "prodhdfs"
