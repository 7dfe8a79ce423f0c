"""Thrift's compact protocol, as far as a Parquet footer needs it, for bytes that may be hostile. Pure.

A footer is read as bytes: what a caller does not ask for is passed over, and stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

#: The end of a file: the length of the footer, and "PAR1".
TAIL_BYTES: Final = 8
MAGIC: Final = b"PAR1"
#: Types.
BYTE, INTEGER, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = 3, 6, 7, 8, 9, 10, 11, 12
_BOOLEANS, _INTEGERS = (1, 2), (4, 5, INTEGER)
#: Bytes of the longest number, of 64 bits.
_NUMBER_BYTES: Final = 10
#: Values that may lie one in another; the footer of a valid file needs ten.
_DEPTH_MAX: Final = 64
#: A list of so many elements or more has its count behind its head.
_LONG_LIST: Final = 15
#: The largest step from the number of a field to that of the next one that has a place in its header.
_STEP_MAX: Final = 15
#: The bits of a byte of a number; the highest one is the mark of more bytes.
_SEVEN, _MORE = 0x7F, 0x80


def footer_length(tail: bytes) -> int | None:
    """Return the length of the footer by the last bytes of a file; None if it is no Parquet file."""
    return int.from_bytes(tail[:4], "little") if len(tail) == TAIL_BYTES and tail[4:] == MAGIC else None


def footer_in(read: Callable[[int, int], bytes], length: int) -> bytes:
    """Return the footer of a file, without the last eight bytes.

    Args:
        read: Returns so many bytes of the file from a position.
        length: Bytes of the file.

    Raises:
        ValueError: It is no Parquet file.
    """
    end = max(0, length - TAIL_BYTES)
    size = footer_length(read(end, length - end))
    if size is None or size > end:
        raise ValueError("it is no Parquet file")
    return read(end - size, size)


class Reader:
    """Reads values one after the other.

    Each element of a collection takes a byte at least, and no step passes the end, so a reader ends after as
    many steps as there are bytes, whatever counts the file gives.

    Attributes:
        data: The bytes.
        at: The position of the next value.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self._depth = 0

    def go(self, size: int) -> None:
        """Pass over bytes.

        Raises:
            IndexError: There are not so many.
        """
        self.at += size
        if self.at > len(self.data):
            raise IndexError(self.at)

    def byte(self) -> int:
        """Return the next byte."""
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Return the next unsigned number of variable length."""
        value = 0
        for place in range(_NUMBER_BYTES):
            byte = self.byte()
            value |= (byte & _SEVEN) << (7 * place)
            if byte < _MORE:
                return value
        raise ValueError(f"a number of more than {_NUMBER_BYTES} bytes before byte {self.at}")

    def count(self) -> int:
        """Return the next signed number.

        Raises:
            ValueError: It is negative or has more than 63 bits, as no number that callers ask for has.
        """
        zigzag = self.number()
        if zigzag & 1 or zigzag >> 64:
            raise ValueError(f"a negative or too large number before byte {self.at}")
        return zigzag >> 1

    def binary(self) -> bytes:
        """Return the next string."""
        size = self.number()
        self.go(size)
        return self.data[self.at - size : self.at]

    def elements(self) -> tuple[int, int]:
        """Return the number and the type of the elements of a list."""
        head = self.byte()
        count = head >> 4
        return (self.number() if count == _LONG_LIST else count), head & 0x0F

    def fields(self) -> Iterator[tuple[int, int, int]]:
        """Yield the fields of a struct: number, type, position of the header. The caller reads the values."""
        number = 0
        while head_byte := self.byte():
            at = self.at - 1
            step = head_byte >> 4
            if step:
                number += step
            else:
                zigzag = self.number()
                number = (zigzag >> 1) ^ -(zigzag & 1)
            yield number, head_byte & 0x0F, at

    def struct(self, reads: dict[int, Read]) -> None:
        """Read the fields of a struct by their numbers, and pass over all others."""
        for number, kind, at in self.fields():
            if number in reads:
                reads[number](self, at)
            else:
                self.skip(kind)

    def structs(self, reads: dict[int, Read]) -> None:
        """Read a list of structs."""
        count, _ = self.elements()
        for _ in range(count):
            self.struct(reads)

    def skip(self, kind: int) -> None:
        """Pass over a value."""
        if kind in _BOOLEANS:  # the type is the value
            return
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise ValueError(f"more than {_DEPTH_MAX} values one in another at byte {self.at}")
        if kind == BYTE:
            self.go(1)
        elif kind in _INTEGERS:
            self.number()
        elif kind == DOUBLE:
            self.go(8)
        elif kind == BINARY:
            self.go(self.number())
        elif kind in {LIST, SET}:
            count, inner = self.elements()
            for _ in range(count):
                self._skip_element(inner)
        elif kind == STRUCT:
            self.struct({})
        elif kind == MAP:
            count = self.number()
            kinds = self.byte() if count else 0
            for _ in range(count):
                self._skip_element(kinds >> 4)
                self._skip_element(kinds & 0x0F)
        else:
            raise ValueError(f"unknown type {kind} at byte {self.at}")
        self._depth -= 1

    def _skip_element(self, kind: int) -> None:
        """Pass over a value in a collection, where a boolean is a byte."""
        self.skip(BYTE if kind in _BOOLEANS else kind)


#: Reads the value of a field, whose header is at a position.
Read = Callable[[Reader, int], None]


def read_footer(data: bytes, reads: dict[int, Read]) -> None:
    """Read the fields of a footer by their numbers.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        Reader(data).struct(reads)
    except IndexError:
        raise ValueError("the footer ends early") from None


def count_bytes(value: int) -> bytes:
    """Return the bytes of a number that :meth:`Reader.count` returns."""
    return number_bytes(value << 1)


def list_head(count: int, kind: int) -> bytes:
    """Return the bytes before the elements of a list."""
    if count < _LONG_LIST:
        return bytes([count << 4 | kind])
    return bytes([_LONG_LIST << 4 | kind]) + number_bytes(count)


def number_bytes(value: int) -> bytes:
    """Return the bytes of an unsigned number of variable length."""
    found = bytearray()
    while value >= _MORE:
        found.append(value & _SEVEN | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


class Field(msgspec.Struct, frozen=True):
    """One field of a struct: number, type, and value as bytes; a boolean has its value as type."""

    number: int
    kind: int
    value: bytes


def fields_of(data: bytes) -> list[Field]:
    """Take a struct apart.

    Raises:
        ValueError: It cannot be read, or something follows it.
    """
    reader = Reader(data)
    found = []
    try:
        for number, kind, _ in reader.fields():
            begin = reader.at
            reader.skip(kind)
            found.append(Field(number, kind, data[begin : reader.at]))
    except IndexError:
        raise ValueError("a struct ends early") from None
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes follow a struct")
    return found


def struct_of(fields: Iterable[Field]) -> bytes:
    """Return a struct of fields, whose numbers ascend."""
    found = bytearray()
    last = 0
    for field in fields:
        step = field.number - last
        if 0 < step <= _STEP_MAX:
            found.append(step << 4 | field.kind)
        else:
            found.append(field.kind)
            found += count_bytes(field.number)
        found += field.value
        last = field.number
    return bytes(found) + b"\0"


def elements_of(data: bytes, kind: int = STRUCT) -> list[bytes]:
    """Return the elements of a list.

    Raises:
        ValueError: It cannot be read, or its elements are of another type.
    """
    reader = Reader(data)
    found = []
    try:
        count, found_kind = reader.elements()
        if count and found_kind != kind:
            raise ValueError(f"expected a list of elements of type {kind}, found {found_kind}")
        for _ in range(count):
            begin = reader.at
            reader.skip(kind)
            found.append(data[begin : reader.at])
    except IndexError:
        raise ValueError("a list ends early") from None
    return found


def list_of(elements: Sequence[bytes], kind: int = STRUCT) -> bytes:
    """Return a list of elements."""
    return list_head(len(elements), kind) + b"".join(elements)


def text_bytes(text: str) -> bytes:
    """Return the bytes of a string."""
    data = text.encode()
    return number_bytes(len(data)) + data
