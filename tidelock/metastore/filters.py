"""Filters of partitions, as Spark writes them for a Hive metastore. Pure.

Spark filters again, so a filter may keep more partitions than it means, and must not lose one. What is not
understood keeps all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

#: The texts of a partition's values by column, None for null.
Values = Mapping[str, str | None]
Filter = Callable[[Values], bool]

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<text>"[^"]*"|'[^']*')|(?P<number>-?\d+)\b|(?P<word>\w+)|(?P<sign><=|>=|!=|<>|[=<>(),]))"""
)
_INTEGER: Final = re.compile(r"-?\d+")
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_COMPARE: Final[Mapping[str, Callable[[int], bool]]] = {
    "=": lambda order: order == 0,
    "!=": lambda order: order != 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


class _NotUnderstoodError(Exception):
    """The filter has a form that this module does not know."""


def filter_of(text: str, types: Mapping[str, str]) -> Filter:
    """Return the filter of a text.

    Args:
        text: Comparisons of partition columns with literals, ``in``, ``and``, ``or`` and brackets.
        types: The type of each partition column.
    """
    try:
        return _Parser(text, types).filter()
    except _NotUnderstoodError:
        return lambda _: True


class _Parser:
    """A parser of one filter, by recursive descent."""

    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self._types = {name.lower(): (name, kind) for name, kind in types.items()}
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                self._give_up()
            self._tokens.append(found.group().strip())
            at = found.end()

    def filter(self) -> Filter:
        """Return the whole filter."""
        whole = self._either()
        return whole if not self._tokens else self._give_up()

    def _either(self) -> Filter:
        parts = [self._both()]
        while self._next_is("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def _both(self) -> Filter:
        parts = [self._term()]
        while self._next_is("and"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def _term(self) -> Filter:
        if [token.lower() for token in self._tokens[2:4]] == [")", "in"]:
            return self._one_of()
        if self._next_is("("):
            inner = self._either()
            self._expect(")")
            return inner
        return self._comparison()

    def _one_of(self) -> Filter:
        """Return `(column) in (literal, ...)`, as Spark writes it."""
        self._expect("(")
        name = self._take()
        for token in (")", "in", "("):
            self._expect(token)
        tests = [self._test(name, "=", self._literal())]
        while self._next_is(","):
            tests.append(self._test(name, "=", self._literal()))
        self._expect(")")
        return lambda row: any(test(row) for test in tests)

    def _comparison(self) -> Filter:
        name, sign, literal = self._take(), self._take(), self._literal()
        return self._test(name, sign, literal)

    def _test(self, name: str, sign: str, literal: str) -> Filter:
        known = self._types.get(name.lower())
        if known is None or sign not in _COMPARE:
            self._give_up()
        column, kind = known
        holds, compare = _COMPARE[sign], _order_of(kind, literal)

        def test(row: Values) -> bool:
            value = row[column]
            if value is None:
                return False  # no comparison with null is true
            order = compare(value)
            return order is None or holds(order)

        return test

    def _literal(self) -> str:
        token = self._take()
        if token[0] not in "\"'" and not _INTEGER.fullmatch(token):
            self._give_up()
        return token

    def _next_is(self, token: str) -> bool:
        if self._tokens and self._tokens[0].lower() == token:
            del self._tokens[0]
            return True
        return False

    def _expect(self, token: str) -> None:
        if not self._next_is(token):
            self._give_up()

    def _take(self) -> str:
        return self._tokens.pop(0) if self._tokens else self._give_up()

    def _give_up(self) -> NoReturn:
        raise _NotUnderstoodError


def _order_of(kind: str, literal: str) -> Callable[[str], int | None]:
    """Return a comparison of texts of a type with a literal: negative, 0, positive; None: not known."""
    if literal[0] not in "\"'":
        number = int(literal)
        return lambda text: _sign(int(text), number) if _INTEGER.fullmatch(text) else None
    other = literal[1:-1]
    if kind == "string":
        return lambda text: _sign(text, other)
    if kind == "date":
        return lambda text: _sign(text, other) if _DAY.fullmatch(text) and _DAY.fullmatch(other) else None
    return lambda _: None


def _sign(left: str | int, right: str | int) -> int:
    return (left > right) - (left < right)  # type: ignore[operator]
