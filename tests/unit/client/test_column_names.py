"""Names of columns: which ones a table may have, and lists of them as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.column_names import OWN, by_same, join_list, problem_of, same, split_list
from tidelock.errors import BadRequestError

NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20)


@pytest.mark.parametrize(
    "name", ["Day", "Order ID", "größe", "a.b", 'the "big" one', "`", "a,b", "日", "#", " ", "=", "_x", "%41"]
)
def test_names_of_any_letters_are_names(name: str) -> None:
    """Data has them, so tables do."""
    assert problem_of(name) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "is empty"),
        ("a\nb", "U\\+000A, a control character"),
        ("a\0", "U\\+0000"),
        ("\u2028", "U\\+2028"),
        ("x" * 256, "has 256 bytes; the limit is 255 \\(column_name_bytes_max\\)"),
        ("ü" * 128, "has 256 bytes"),
        ("_COMMIT_csn", "reserved for change feeds"),
        (OWN.upper() + "row", "begins with #tidelock:"),
    ],
)
def test_names_that_no_column_can_have(name: str, text: str) -> None:
    """The reason says what to do."""
    with pytest.raises(AssertionError, match=text):
        assert problem_of(name) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [("Day", "dAY"), ("GRÖSSE", "größe"), ("u\u0308", "\u00dc"), ("\u212a", "k"), ("İ", "i\u0307")],
)
def test_names_that_differ_in_case_alone_are_the_same(one: str, other: str) -> None:
    """Also letters outside of ASCII, and letters that are composed in two ways."""
    assert same(one) == same(other)
    assert by_same(["x", one])[same(other)] == one
    assert same(other) not in by_same(["x"])


@given(st.lists(NAMES, max_size=5))
def test_a_list_of_names_is_read_back(names: list[str]) -> None:
    """Commas, quotes and spaces at the ends do not change a name."""
    assert list(split_list(join_list(names))) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a, b ,c", ("a", "b", "c")),
        ("", ()),
        (" , ,", ()),
        ('"a,b",`c``d`, "x""y"', ("a,b", "c`d", 'x"y')),
        ('wide "ly", x', ('wide "ly"', "x")),
    ],
)
def test_lists_as_users_write_them(text: str, names: tuple[str, ...]) -> None:
    """Quotes as in SQL or in Spark, spaces around the commas."""
    assert split_list(text) == names


@pytest.mark.parametrize("text", ['"a', "`a", '"a" b', '"a"b, c', '""'])
def test_lists_with_a_broken_quote_are_refused(text: str) -> None:
    """The message says how quotes are written."""
    with pytest.raises(BadRequestError, match="is not a list of names"):
        split_list(text)


@given(NAMES, st.integers(1, 80))
def test_a_name_within_the_limit_has_no_problem(name: str, limit: int) -> None:
    """The limit counts bytes; the only other reasons are reserved names."""
    reserved = same(name).startswith(OWN)
    assert (problem_of(name, limit) is None) == (len(name.encode()) <= limit and not reserved)
