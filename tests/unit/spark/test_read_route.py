"""Options with which Spark reaches the replicas, and the schemas and views of tables; without a session."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from tidelock.errors import (
    BadRequestError,
    StandbyError,
    UnavailableError,
    UnknownTableError,
    UnsupportedTypeError,
)
from tidelock.read_route import ADDRESSES, SILENCE_S, ReadRoute, Replica, order, route
from tidelock.replica_agent.readers.signs import SIGN_S
from tidelock.spark import schema
from tidelock.spark.schema import struct_of, type_of
from tidelock.spark.tables import select, view_names

THREE = [Replica("r1", "h1:1"), Replica("r_2", "h2:2"), Replica("r3", "h3:3")]
STATUS = {"read_wait_s": 1.0}
#: How long a frozen replica may stall a reader, in seconds.
AIM_S = 3.0


def _addresses(found: ReadRoute) -> list[str]:
    """Return the addresses in the order in which Hadoop's client tries them."""
    names = found.options[f"dfs.ha.namenodes.{found.authority}"].split(",")
    return [found.options[f"dfs.namenode.http-address.{found.authority}.{name}"] for name in names]


def test_reader_options_protect_the_rows() -> None:
    """Missing and corrupt files are errors, dates are not shifted, vectored reads are off."""
    options = route(THREE, STATUS, failover=True).options
    assert options["ignoremissingfiles"] == options["ignorecorruptfiles"] == "false"
    assert options["datetimerebasemode"] == "CORRECTED"
    assert options["parquet.hadoop.vectored.io.enabled"] == "false"


def test_two_waits_for_a_frozen_replica_are_bearable() -> None:
    """Hadoop's client may wait twice for one replica: in a file that it reads, and for the connection after.

    It waits for a sign of life, not for the answer: so it may be brief, whatever the agents wait for.
    """
    for read_wait_s in (1.0, 2.5):
        options = route(THREE, {"read_wait_s": read_wait_s}, failover=True).options
        assert options["dfs.webhdfs.socket.read-timeout"] == "1250ms"
        assert options["dfs.webhdfs.socket.connect-timeout"] == "1250ms"
    assert 2 * SILENCE_S < AIM_S
    assert SILENCE_S > 3 * SIGN_S


def test_a_lone_replica_is_waited_for_longer() -> None:
    """Where no other replica can be asked, a pause of the only one fails no job."""
    for alone in (route(THREE, STATUS, failover=False), route(THREE[:1], STATUS, failover=True)):
        assert alone.options["dfs.webhdfs.socket.read-timeout"] == "8000ms"
        assert alone.options["dfs.webhdfs.socket.connect-timeout"] == "2000ms"


def test_option_names_survive_spark() -> None:
    """All names are in lower case, since Spark passes reader options on in lower case."""
    assert all(name == name.lower() for name in route(THREE, STATUS, failover=True).options)


def test_the_first_replica_is_listed_once() -> None:
    """However many tasks use the first replica when it dies, each continues with a living replica."""
    addresses = _addresses(route(THREE, STATUS, failover=True))
    assert addresses[:4] == ["h1:1", "h2:2", "h3:3", "h2:2"]
    assert len(addresses) == ADDRESSES
    assert addresses.count("h1:1") == 1


def test_without_failover_there_is_one_address_and_one_try() -> None:
    """failover=False never reads from a second replica and does not ask twice."""
    found = route(THREE, STATUS, failover=False)
    assert _addresses(found) == ["h1:1"]
    assert found.options["dfs.http.client.failover.max.attempts"] == "0"
    assert found.options["dfs.http.client.retry.max.attempts"] == "0"


def test_a_single_replica_is_asked_again() -> None:
    """With failover a single replica is asked more than once."""
    found = route(THREE[:1], STATUS, failover=True)
    assert _addresses(found) == ["h1:1"]
    assert int(found.options["dfs.http.client.failover.max.attempts"]) > 0


def test_known_name_services_are_kept() -> None:
    """The session's name services remain, each once; ours is added."""
    found = route(THREE, STATUS, failover=True, name_services=["prod", "dr"])
    assert found.options["dfs.nameservices"] == f"prod,dr,{found.authority}"
    again = route(THREE, STATUS, failover=True, name_services=["prod", found.authority])
    assert again.options["dfs.nameservices"] == f"prod,{found.authority}"


REPLICAS = st.lists(
    st.builds(
        Replica, st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), st.sampled_from(["a:1", "b:2"])
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda replica: replica.id,
)


@given(
    REPLICAS, REPLICAS, st.booleans(), st.booleans(), st.sampled_from([1.0, 5.0]), st.sampled_from([1.0, 5.0])
)
def test_the_authority_names_the_configuration(
    one: list[Replica], two: list[Replica], over_one: bool, over_two: bool, bound_one: float, bound_two: float
) -> None:
    """Equal authorities have equal options: Hadoop's client caches file systems by authority alone."""
    first = route(one, {"read_wait_s": bound_one}, failover=over_one)
    second = route(two, {"read_wait_s": bound_two}, failover=over_two)
    assert (first.authority == second.authority) == (first.options == second.options)
    assert urlsplit(f"webhdfs://{first.authority}/").hostname == first.authority
    assert re.fullmatch(r"[a-z0-9-]+", first.authority)


def _rows(*dead: str, **states: str) -> list[dict[str, Any]]:
    return [
        {"id": name, "data": f"{name}:1", "alive": name not in dead, "state": states.get(name, "serving")}
        for name in ("r1", "r2", "r3")
    ]


def _ids(rows: list[dict[str, Any]], pinned: str | None = None, rotation: int = 0) -> list[str]:
    return [replica.id for replica in order(rows, pinned=pinned, rotation=rotation)]


def test_readers_spread_over_replicas_without_a_pin() -> None:
    """Without a pinned replica the order is rotated."""
    assert [_ids(_rows(), rotation=number)[0] for number in range(4)] == ["r1", "r2", "r3", "r1"]
    assert _ids(_rows(), rotation=5) == ["r3", "r1", "r2"]


def test_the_pinned_replica_comes_first() -> None:
    """The pinned replica comes first even if it is silent: it may answer again at the time of the read."""
    assert _ids(_rows(), pinned="r2") == ["r2", "r1", "r3"]
    assert _ids(_rows("r2"), pinned="r2", rotation=2) == ["r2", "r3", "r1"]


def test_silent_replicas_come_last() -> None:
    """A silent replica is tried last, not left out."""
    assert _ids(_rows("r1")) == ["r2", "r3", "r1"]


def test_replicas_that_must_not_serve_are_left_out() -> None:
    """The refusal of a struck replica would fail a job that the others can finish."""
    assert _ids(_rows(r1="struck", r3="removed")) == ["r2"]


def test_an_unknown_replica_is_named() -> None:
    """The message lists the existing replicas; a cluster without addresses is another error."""
    with pytest.raises(BadRequestError, match=r"r9.*r1, r2, r3"):
        _ids(_rows(), pinned="r9")
    with pytest.raises(BadRequestError, match=r"r3.*r1, r2"):
        _ids(_rows(r3="removed"), pinned="r3")
    with pytest.raises(UnavailableError):
        _ids([{"id": "r1", "data": ""}])


@pytest.mark.parametrize(
    "row", [{"id": "r4", "data": "", "state": "joining"}, {"id": "r4", "data": "r4:1", "state": "struck"}]
)
def test_a_member_that_cannot_be_read_yet_is_worth_another_try(row: dict[str, Any]) -> None:
    """A replica that joins, or that is struck and may come back, exists: the error is retriable."""
    with pytest.raises(StandbyError, match=f"r4.*{row['state']}.*r1, r2, r3") as refused:
        _ids([*_rows(), row], pinned="r4")
    assert refused.value.retriable


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("boolean", "boolean"),
        ("tinyint", "tinyint"),
        ("smallint", "smallint"),
        ("int", "int"),
        ("bigint", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("string", "string"),
        ("binary", "binary"),
        ("date", "date"),
        ("time", "time(6)"),
        ("array<struct<time:time>>", "array<struct<time:time(6)>>"),
        ("timestamp", "timestamp"),
        ("timestamp_ntz", "timestamp_ntz"),
        ("decimal(38,10)", "decimal(38,10)"),
    ],
)
def test_types_have_the_names_of_spark(text: str, expected: str) -> None:
    """The type names of definitions are Spark's names."""
    assert type_of(text, "c").simpleString() == expected


@pytest.mark.parametrize("text", ["variant", "array<>", "char(3)", ""])
def test_an_unknown_type_is_refused(text: str) -> None:
    """A type from a newer cluster is not guessed; the message names the column."""
    with pytest.raises(UnsupportedTypeError, match="column c "):
        type_of(text, "c")


def test_a_spark_without_times_of_day_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 3.5 has no such type; other columns are read as before."""
    monkeypatch.setattr(schema, "_TIME", None)
    with pytest.raises(UnsupportedTypeError, match=r"column c has type array<time>.* Spark 4\.1 or later"):
        type_of("array<time>", "c")
    assert type_of("date", "c").simpleString() == "date"


def test_a_definition_becomes_a_schema() -> None:
    """Columns keep their order and say whether they may be null."""
    columns = [
        {"name": "b", "type": "int", "nullable": False},
        {"name": "a", "type": "decimal(5,2)", "nullable": True},
    ]
    assert struct_of({"columns": columns}) == types.StructType(
        [types.StructField("b", types.IntegerType(), False), types.StructField("a", types.DecimalType(5, 2))]
    )


def test_views_are_called_like_their_tables() -> None:
    """The name of a view contains the namespace only if that is not the default one."""
    assert view_names(["default.a", "sales.b"], "t_") == {"default.a": "t_a", "sales.b": "t_sales_b"}


def test_two_tables_with_one_view_are_refused() -> None:
    """Two tables with the same view are an error, since no rule prefers one of them."""
    with pytest.raises(BadRequestError, match=r"default\.a_b and a\.b"):
        view_names(["default.a_b", "a.b"], "")


def test_tables_are_chosen_by_name() -> None:
    """Names are accepted with and without namespace, in the given order; an unknown table is named."""
    definitions: dict[str, dict[str, Any]] = {"default.a": {}, "sales.b": {}, "default.c": {}}
    assert list(select(definitions, None, 1)) == ["default.a", "sales.b", "default.c"]
    assert list(select(definitions, ["sales.b", "a"], 1)) == ["sales.b", "default.a"]
    with pytest.raises(UnknownTableError, match=r"default\.b at CSN 7"):
        select(definitions, ["b"], 7)
