"""The base of the answers that users of the client see: typed values that still read like dicts. Pure."""

from __future__ import annotations

import functools
import html
import reprlib
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeVar

import msgspec

R = TypeVar("R", bound="Row")

#: How long texts, lists and dicts may be in a `repr` and in a cell; a program may set other limits.
SHORT: Final = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = 80
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = 6


class Row(msgspec.Struct, frozen=True):
    """A value of an answer: its fields are attributes, and it reads like the dict of its JSON.

    The client returned dicts before it returned these values. So `row["name"]`, `row.get("name")`, `"name" in
    row`, `dict(row)`, iteration over the keys and `==` with a dict work as they did: the keys are those of
    the JSON, in its order, without the fields that the JSON leaves out. `json.dumps(row, default=dict)`
    writes that JSON.

    Attributes:
        shown: The attributes in its `repr` and in a table of such rows; empty: all fields.
    """

    shown: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, name: str) -> Any:
        return self._as_dict()[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field by its name, or the default if the JSON lacks it."""
        return self._as_dict().get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_dict())

    def __len__(self) -> int:
        return len(self._as_dict())

    def __contains__(self, name: object) -> bool:
        return name in self._as_dict()

    def keys(self) -> KeysView[str]:
        """Return the names of the fields."""
        return self._as_dict().keys()

    def values(self) -> ValuesView[Any]:
        """Return the values of the fields."""
        return self._as_dict().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the fields with their names."""
        return self._as_dict().items()

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self}

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Row) or not isinstance(other, Mapping):
            return super().__eq__(other)
        return self._as_dict() == other

    __hash__ = msgspec.Struct.__hash__

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_text(getattr(self, name))}" for name in _names(self))
        return f"{type(self).__name__}({shown})"

    def _repr_html_(self) -> str:
        fields = [(name, getattr(self, name)) for name in self.__struct_fields__]
        cells = [(html.escape(name), _nested(value) or _cell(value)) for name, value in fields]
        return _table(("field", "value"), cells)

    def _as_dict(self) -> dict[str, Any]:
        config, left_out = self.__struct_config__, _left_out(type(self))
        found: dict[str, Any] = {} if config.tag is None else {str(config.tag_field): config.tag}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name not in left_out or value != left_out[name]:
                found[name] = value
        return found


# A Struct has a metaclass of its own, so it cannot inherit from an abstract class.
Mapping.register(Row)

#: A row, or a dict: a function that takes these reads its fields by name.
Fields = Row | Mapping[str, Any]


class RowList(list[R]):
    """A list of rows that a notebook shows as a table.

    Attributes:
        html_rows_max: The table has at most so many rows, and says how many more there are.
    """

    html_rows_max: ClassVar[int] = 200

    def _repr_html_(self) -> str:
        if not self:
            return "<p>no rows</p>"
        names = _names(self[0])
        shown = self[: self.html_rows_max]
        table = _table(names, [[_cell(getattr(row, name)) for name in names] for row in shown])
        more = len(self) - len(shown)
        return f"{table}<p>{more:,} more rows</p>" if more else table


def instant(time_ms: int | None) -> datetime | None:
    """Return the UTC time for milliseconds since 1970; None for None and for 0, the agents' "not known"."""
    return datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms else None


def _names(row: Row) -> tuple[str, ...]:
    """Return the names of what a line shows of a row."""
    return row.shown or row.__struct_fields__


@functools.cache
def _left_out(kind: type[Row]) -> Mapping[str, Any]:
    """Return the fields that JSON leaves out where they have these values, their defaults."""
    if not kind.__struct_config__.omit_defaults:
        return {}
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(kind)
        if not field.required
    }


def _text(value: object) -> str:
    """Return a value as a part of one line: rows within it by their number."""
    match value:
        case datetime():
            return value.isoformat()
        case Row():
            return repr(value)
        case [Row() as first, *_] if isinstance(value, Sequence):
            return f"<{len(value):,} {type(first).__name__}>"
        case _:
            return SHORT.repr(value)


def _nested(value: object) -> str | None:
    """Return the table of rows within a row; None for another value."""
    match value:
        case Row():
            return value._repr_html_()
        case [Row(), *_] if isinstance(value, list | tuple):
            return RowList(value)._repr_html_()
        case _:
            return None


def _cell(value: object) -> str:
    match value:
        case None:
            return ""
        case str():
            return html.escape(value[: SHORT.maxstring] + "…" * (len(value) > SHORT.maxstring))
        case _:
            return html.escape(_text(value))


def _table(names: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table; the cells are HTML."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
