"""Queries for the rows of parts that meet a condition in SQL, which replicas evaluate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidelock.client.agents.transport import Timeouts, Transport
from tidelock.client.reads.stream import BatchStream
from tidelock.errors import NoAnswerError, NoConnectionError, UnavailableError
from tidelock.spark.source import silent
from tidelock.spark.source.retries import retry_while_unavailable
from tidelock.spark.source.rows import shaped
from tidelock.wire.reads import QueryRequest


@dataclass(frozen=True, slots=True)
class PartQuery:
    """A query of parts of a table at one CSN.

    Attributes:
        csn: CSN of the snapshot.
        table: Name of the table.
        where: The condition in SQL.
        wanted: The wanted columns, with the Arrow types that Spark expects.
        scheme: `http` or `https`.
        addresses: `host:port` of the replicas' APIs, in the order in which they are asked.
        token: The shared secret; not in `repr`.
    """

    csn: int
    table: str
    where: str
    wanted: pa.Schema
    scheme: str
    addresses: tuple[str, ...]
    token: str | None = field(repr=False)

    def rows(self, parts: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some parts that meet the condition.

        Raises:
            BadRequestError: The condition is wrong.
            UnavailableError: No replica answers, or a replica has stopped in the middle of its answer.
            TidelockError: A replica refuses the snapshot.
        """
        transport = Transport(scheme=self.scheme, token=self.token, timeouts=Timeouts())
        try:
            stream = self._open(transport, parts)
            try:
                for batch in stream:
                    yield shaped(batch, self.wanted)
            finally:
                stream.close()
        finally:
            transport.close()

    def _open(self, transport: Transport, parts: Sequence[str]) -> BatchStream:
        body = QueryRequest(
            csn=self.csn,
            table=self.table,
            columns=self.wanted.names,
            where=self.where,
            parts=list(parts),
        )

        def attempt() -> BatchStream:
            last: UnavailableError | None = None
            for address in silent.last(self.addresses):
                try:
                    response = transport.stream(address, "/query", body, elsewhere=len(self.addresses) > 1)
                    return BatchStream(response, address)
                except (NoAnswerError, NoConnectionError) as error:
                    silent.note(address)
                    last = error
                except UnavailableError as error:
                    last = error
            assert last is not None, "a query needs an address"
            raise last

        return retry_while_unavailable(attempt)
