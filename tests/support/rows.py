"""Tables, rows and Arrow streams for tests: one of each column type, and the strategies that fill them."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import PartId
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.storage.part_writer import EncodedPart, InsertStream, PartMaker
from tidelock.replica_agent.tables.schema import TableSchema

#: One column of every type that a table may have.
ALL_TYPES: dict[str, pa.DataType] = {
    "c_boolean": pa.bool_(),
    "c_tinyint": pa.int8(),
    "c_smallint": pa.int16(),
    "c_int": pa.int32(),
    "c_bigint": pa.int64(),
    "c_float": pa.float32(),
    "c_double": pa.float64(),
    "c_decimal": pa.decimal128(9, 2),
    "c_decimal_18": pa.decimal128(18, 18),
    "c_decimal_38": pa.decimal128(38, 0),
    "c_string": pa.string(),
    "c_binary": pa.binary(),
    "c_date": pa.date32(),
    "c_time": pa.time64("us"),
    "c_timestamp": pa.timestamp("us", tz="UTC"),
    "c_timestamp_ntz": pa.timestamp("us"),
}


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


#: Values that writers and readers of Parquet compare in different ways.
SPECIAL_FLOATS: Final = (math.nan, 0.0, -0.0, 1.0, math.inf, -math.inf)
FLOATS: Final = st.sampled_from(SPECIAL_FLOATS)
#: Longer than what statistics and the pages of a column keep of a value.
HUGE_BYTES: Final = 5_000


def _ends(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _decimals(digits: int, scale: int) -> tuple[Decimal, ...]:
    # Not by arithmetic, which rounds to the 28 digits of the context.
    ends = (Decimal((sign, (9,) * digits, -scale)) for sign in (0, 1))
    return *ends, Decimal((0, (0,), -scale)), Decimal((0, (1,), -scale))


_MOMENTS: Final = (
    dt.datetime.min.replace(tzinfo=dt.UTC),
    dt.datetime(1582, 10, 10, tzinfo=dt.UTC),
    dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    dt.datetime.max.replace(tzinfo=dt.UTC),
)
#: The ends of each type, and values that look like none: random data draws them often.
EXTREMES: Final[dict[str, tuple[Any, ...]]] = {
    "c_boolean": (False,),
    "c_tinyint": _ends(8),
    "c_smallint": _ends(16),
    "c_int": _ends(32),
    "c_bigint": (*_ends(64), 0),
    "c_float": (*SPECIAL_FLOATS, 3.4028234663852886e38, 1.401298464324817e-45),
    "c_double": (*SPECIAL_FLOATS, 1.7976931348623157e308, 5e-324),
    "c_decimal": _decimals(9, 2),
    "c_decimal_18": _decimals(18, 18),
    "c_decimal_38": _decimals(38, 0),
    "c_string": ("", " ", "\0", "null", "\U0010ffff", "z" * HUGE_BYTES, "\u00e9" * HUGE_BYTES),
    "c_binary": (b"", b"\0", b"\xff" * HUGE_BYTES),
    "c_time": (dt.time.min, dt.time(12, 30), dt.time.max),
    "c_date": (dt.date.min, dt.date(1970, 1, 1), dt.date.max),
    "c_timestamp": _MOMENTS,
    "c_timestamp_ntz": tuple(moment.replace(tzinfo=None) for moment in _MOMENTS),
}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "c_boolean": st.booleans(),
    "c_tinyint": _integers(8),
    "c_smallint": _integers(16),
    "c_int": _integers(32),
    "c_bigint": _integers(64),
    "c_float": st.floats(width=32),
    "c_double": st.floats(),
    "c_decimal": _integers(30).map(lambda value: Decimal(value).scaleb(-2)),
    "c_decimal_18": _integers(59).map(lambda value: Decimal(value).scaleb(-18)),
    "c_decimal_38": _integers(126).map(Decimal),
    "c_string": _TEXT,
    "c_binary": st.binary(max_size=80),
    "c_date": st.dates(),
    "c_time": st.times(),
    "c_timestamp": st.datetimes().map(lambda value: value.replace(tzinfo=dt.UTC)),
    "c_timestamp_ntz": st.datetimes(),
}


def batches(
    names: Sequence[str] = tuple(ALL_TYPES), rows_max: int = 20, rows_min: int = 0
) -> st.SearchStrategy[pa.RecordBatch]:
    """Record batches with columns of :data:`ALL_TYPES`: nulls and extremes among their values, or no rows."""
    schema = pa.schema([(name, ALL_TYPES[name]) for name in names])
    row = st.fixed_dictionaries(
        {name: st.none() | st.sampled_from(EXTREMES[name]) | _VALUES[name] for name in names}
    )
    return st.lists(row, min_size=rows_min, max_size=rows_max).map(
        lambda rows: pa.RecordBatch.from_pylist(rows, schema=schema)
    )


def stream(*batches_of_one_schema: pa.RecordBatch) -> bytes:
    """An Arrow IPC stream of the batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches_of_one_schema[0].schema) as writer:
        for batch in batches_of_one_schema:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def settings(**limits: Any) -> AgentSettings:
    """Settings of an agent that is never started."""
    return AgentSettings(replica="r1", data_dir=Path("unused"), zk="unused", **limits)


class Sinks:
    """Sinks in memory, by part; ``fail`` is raised by the next write."""

    def __init__(self) -> None:
        self.written: dict[PartId, bytearray] = {}
        self.fail: Exception | None = None
        self._numbers = itertools.count(1)

    def new_part(self) -> PartId:
        """Return the next part id."""
        return PartId(f"r1-1-{next(self._numbers)}")

    def open(self, part: PartId) -> MemorySink:
        """Open the sink of a part."""
        self.written[part] = bytearray()
        return MemorySink(self, part)

    def maker(self, schema: TableSchema, **limits: Any) -> PartMaker:
        """Return the maker of parts that an insert into ``schema`` needs."""
        return PartMaker(schema, settings(**limits), self.new_part, self.open)


class MemorySink:
    """One sink of :class:`Sinks`."""

    def __init__(self, sinks: Sinks, part: PartId) -> None:
        self._sinks = sinks
        self._part = part

    def write(self, data: bytes, /) -> int:
        """Append, or raise the planned error."""
        if self._sinks.fail is not None:
            raise self._sinks.fail
        self._sinks.written[self._part] += data
        return len(data)


async def chunks_of(body: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    """Yield a body as a socket delivers it."""
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def streamed(chunks: AsyncIterator[bytes], maker: PartMaker) -> list[EncodedPart]:
    """Return all parts of a body that arrives in chunks."""
    async with aclosing(InsertStream(maker).parts(chunks)) as parts:
        return [part async for part in parts]
