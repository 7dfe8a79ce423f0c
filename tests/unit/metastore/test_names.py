"""Names of databases: a namespace, with a CSN, a tag or neither."""

from __future__ import annotations

import pytest

from tidelock.metastore.names import DatabaseName, matching, read_name, suffix_of


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("default", DatabaseName("default", None)),
        ("default_at_4217", DatabaseName("default", 4217)),
        ("Sales_At_7", DatabaseName("sales", 7)),
        ("sales_at_q3", DatabaseName("sales", "q3")),
        ("sales_at_2026-q3", DatabaseName("sales", "2026-q3")),
        ("looked_at_me_at_5", DatabaseName("looked", "me_at_5")),
        ("_at_5", DatabaseName("_at_5", None)),
        ("sales_at_", DatabaseName("sales_at_", None)),
        ("at_5", DatabaseName("at_5", None)),
    ],
)
def test_a_name_says_its_namespace_and_its_csn(text: str, meant: DatabaseName) -> None:
    """Digits are a CSN, other words a tag; Hive's client sends all names in lower case."""
    assert read_name(text) == meant


@pytest.mark.parametrize("csn", [1, 4217, 10**17])
def test_the_suffix_of_a_csn_is_read_back(csn: int) -> None:
    """So the text that the view of the newest CSN gives can be put behind any namespace."""
    named = read_name("sales" + suffix_of(csn))
    assert named == DatabaseName("sales", csn)
    assert named.is_exact


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["lines", "orders"]),
        (None, ["lines", "orders"]),
        ("ord*", ["orders"]),
        ("ORDERS", ["orders"]),
        ("*e*", ["lines", "orders"]),
        ("lines|orders", ["lines", "orders"]),
        ("o.ders", []),
        ("", ["lines", "orders"]),
    ],
)
def test_patterns_of_hive_choose_names(pattern: str | None, found: list[str]) -> None:
    """A star is any text, a bar stands between alternatives, and nothing else is special."""
    assert matching(["lines", "orders"], pattern) == found
