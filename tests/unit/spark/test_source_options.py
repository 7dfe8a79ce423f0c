"""Options of the data source: their values, and the errors of wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tidelock.errors import BadRequestError
from tidelock.spark.source.connections import environment
from tidelock.spark.source.options import OPTIONS, Use, check, read_options, write_options

GIVEN: Mapping[str, str] = {"table": "orders", "url": "http://a:1, http://b:2"}


def test_options_are_taken_in_any_case() -> None:
    """Values of all kinds are parsed, and names are accepted in any case."""
    found = read_options(
        {**GIVEN, "CSNASOF": "7", "partitionbytes": "64m", "leaseSeconds": "1.5", "failOver": "False"}, {}
    )
    assert (found.csn, found.partition_bytes, found.lease_s, found.failover) == (7, 64 << 20, 1.5, False)
    assert found.target.urls == ("http://a:1", "http://b:2")
    assert read_options({**GIVEN, "timestampAsOf": "2026-01-01T01:00:00+01:00"}, {}).at_ms == 1767225600000
    assert read_options({**GIVEN, "timestampAsOf": "1767225600000"}, {}).at_ms == 1767225600000
    assert write_options({**GIVEN, "overwritePartitions": "true", "label": "x"}, {}).overwrite_partitions


def test_the_environment_gives_address_and_secret() -> None:
    """URL and secret may come from the environment, the table from load(); `repr` hides the secret."""
    environ = {"TIDELOCK_URL": "zk://a:1,b:2/root", "TIDELOCK_SECRET": "hush"}
    target = read_options({"path": "sales.orders"}, environ).target
    assert (target.table, target.urls, target.token) == ("sales.orders", ("zk://a:1,b:2/root",), "hush")
    assert "hush" not in repr(read_options({"path": "sales.orders"}, environ))
    assert read_options({**GIVEN, "token": "mine"}, environ).target.token == "mine"


def test_the_environment_may_name_the_file_of_the_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The secret of a file is taken as if the environment held it."""
    (tmp_path / "secret").write_text("hush\n")
    monkeypatch.delenv("TIDELOCK_SECRET", raising=False)
    assert read_options(GIVEN, environment()).target.token is None
    monkeypatch.setenv("TIDELOCK_SECRET_FILE", str(tmp_path / "secret"))
    assert read_options(GIVEN, environment()).target.token == "hush"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"option.table": "x"}, r"CREATE TABLE .* is not supported"),
        ({"tabel": "x"}, r"no option 'tabel'; did you mean table\? Its options: table, url, "),
        ({"csnAsof_": "x"}, r"did you mean csnAsOf\?"),
        ({"completelyDifferent": "x"}, r"no option 'completelyDifferent'\. Its options"),
        ({"startingCsn": "1"}, r"option startingCsn is for readStream, and this is read"),
        ({"label": "x"}, r"option label is for write, and this is read"),
        ({"csnAsOf": "-1"}, r"option csnAsOf is '-1'; expected a CSN, or the name of a tag"),
        ({"csnAsOf": "²"}, r"expected a CSN, or the name of a tag"),
        ({"csnAsOf": "1", "timestampAsOf": "1"}, r"name two snapshots"),
        ({"timestampAsOf": "2026-01-01 12:00:00"}, r"a time with its zone"),
        ({"timestampAsOf": "yesterday"}, r"a time with its zone"),
        ({"partitionBytes": "0"}, r"a size above 0"),
        ({"leaseSeconds": "nan"}, r"a number of seconds above 0"),
        ({"leaseSeconds": "inf"}, r"a number of seconds above 0"),
        ({"failover": "yes"}, r"expected true or false"),
        ({"token": " "}, r"option token is \.\.\.; expected some text"),
        ({"table": " "}, r"option table is ' '; expected some text"),
    ],
)
def test_what_is_wrong_is_told_by_option(wrong: dict[str, str], message: str) -> None:
    """Every message names the option and what was expected."""
    with pytest.raises(BadRequestError, match=message):
        read_options({**GIVEN, **wrong}, {})


def test_a_missing_table_or_address_is_refused() -> None:
    """A table and a URL are required."""
    with pytest.raises(BadRequestError, match="option table is missing"):
        read_options({"url": "http://a:1"}, {})
    with pytest.raises(BadRequestError, match="option url is missing, and TIDELOCK_URL is not set"):
        write_options({"table": "x"}, {})


def test_every_option_is_let_through_where_it_belongs() -> None:
    """An option is accepted for its uses, and refused for all others."""
    for option in OPTIONS:
        for use in Use:
            if use in option.uses:
                check({option.name.upper(): ""}, {use})
            else:
                with pytest.raises(BadRequestError):
                    check({option.name: ""}, {use})
        check({option.name: ""})
