"""Names of column types as text: Spark's DDL, also of nested types, and back. Pure.

It has a module of its own: reader processes count the columns of files, and they do without pyarrow and its
hundred megabytes. Which plain types there are is not known here (:mod:`tidelock.column_types`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

#: Most types inside each other that a text may have; a table has a limit of its own (nested_depth_max).
DEPTH_MAX: Final = 64
#: Other names that Spark's SQL has for a type.
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
#: A word, a quoted name, or a sign; each with the spaces before it.
_TOKEN: Final = re.compile(r'\s*(?:(`(?:[^`]|``)+`|"(?:[^"]|"")+")|([^\s`"<>(),:]+)|([<>(),:]))')
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Plain:
    """A type without fields; decimals have their digits in the name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Array:
    """A list of values of one type."""

    element: TypeTree

    def __str__(self) -> str:
        return f"array<{self.element}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Fields with names."""

    fields: tuple[tuple[str, TypeTree], ...]

    def __str__(self) -> str:
        return f"struct<{','.join(f'{_quoted(name)}:{kind}' for name, kind in self.fields)}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Pairs of a key and a value."""

    key: TypeTree
    value: TypeTree

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


TypeTree = Plain | Array | Struct | Map


@lru_cache(maxsize=4096)
def parse(text: str) -> TypeTree:
    """Return the type of a text.

    Raises:
        ValueError: It is not one type; the message says what was expected, and where.
    """
    parser = _Parser(text)
    tree = parser.type(1)
    parser.end()
    return tree


@lru_cache(maxsize=4096)
def leaves(text: str) -> int:
    """Return how many columns a file has for a column of a type; ValueError as :func:`parse`."""
    return _leaves(parse(text))


def _leaves(tree: TypeTree) -> int:
    match tree:
        case Plain():
            return 1
        case Array(element):
            return _leaves(element)
        case Struct(fields):
            return sum(_leaves(kind) for _, kind in fields)
        case Map(key, value):
            return _leaves(key) + _leaves(value)


def plain_names(tree: TypeTree) -> set[str]:
    """Return the names of the types without fields in a type, itself included."""
    match tree:
        case Plain(name):
            return {name}
        case Array(element):
            return plain_names(element)
        case Struct(fields):
            return set().union(*(plain_names(kind) for _, kind in fields))
        case Map(key, value):
            return plain_names(key) | plain_names(value)


def depth_of(tree: TypeTree) -> int:
    """Return how many types are inside each other; 1 for a plain one."""
    match tree:
        case Plain():
            return 1
        case Array(element):
            return 1 + depth_of(element)
        case Struct(fields):
            return 1 + max((depth_of(kind) for _, kind in fields), default=0)
        case Map(key, value):
            return 1 + max(depth_of(key), depth_of(value))


def unquoted(name: str) -> str:
    """Return a name without the backticks or double quotes around it."""
    for quote in '`"':
        if name.startswith(quote):
            return name[1:-1].replace(2 * quote, quote)
    return name


def quoted(name: str) -> str:
    """Return a name between backticks, as Spark's SQL and its `select` read any name."""
    return "`" + name.replace("`", "``") + "`"


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else quoted(name)


class _Parser:
    """A parser of one text, by recursive descent."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def type(self, depth: int) -> TypeTree:
        """Read a type that is inside of ``depth`` - 1 others."""
        if depth > DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} types are inside each other")
        word = self._word("a type").lower()
        match _ALIASES.get(word, word):
            case "array":
                self._sign("<")
                element = self.type(depth + 1)
                self._sign(">")
                return Array(element)
            case "map":
                self._sign("<")
                key = self.type(depth + 1)
                self._sign(",")
                value = self.type(depth + 1)
                self._sign(">")
                return Map(key, value)
            case "struct":
                return Struct(tuple(self._fields(depth)))
            case "decimal":
                return Plain(f"decimal({','.join(self._digits())})")
            case name:
                return Plain(name)

    def end(self) -> None:
        """Raise ValueError unless all of the text was read."""
        if self._text[self._at :].strip():
            self._refuse("its end")

    def _fields(self, depth: int) -> list[tuple[str, TypeTree]]:
        self._sign("<")
        fields = []
        while True:
            name = self._name()
            self._take(":")
            fields.append((name, self.type(depth + 1)))
            if not self._take(","):
                self._sign(">")
                return fields

    def _digits(self) -> list[str]:
        if not self._take("("):
            return ["10", "0"]  # Spark's meaning of a decimal without digits
        digits = [self._word("a number")]
        digits.append(self._word("a number") if self._take(",") else "0")
        self._sign(")")
        return digits

    def _next(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _take(self, sign: str) -> bool:
        token = self._next()
        if token is None or token[3] != sign:
            return False
        self._at = token.end()
        return True

    def _sign(self, sign: str) -> None:
        if not self._take(sign):
            self._refuse(repr(sign))

    def _word(self, what: str) -> str:
        token = self._next()
        if token is None or not token[2]:
            self._refuse(what)
        self._at = token.end()
        return token[2]

    def _name(self) -> str:
        token = self._next()
        if token is None or token[3]:
            self._refuse("the name of a field")
        self._at = token.end()
        return unquoted(token[1] or token[2])

    def _refuse(self, expected: str) -> NoReturn:
        rest = self._text[self._at :].strip()
        raise ValueError(f"expected {expected}, found {rest[:40]!r}" if rest else f"expected {expected}")
