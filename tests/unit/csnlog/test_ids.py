"""Identifiers: numeric order at every width, one text each, a clear refusal of the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core.ids import (
    CSN_IMPORT,
    CSN_MAX,
    CSN_NONE,
    SEQUENCE_MAX,
    Csn,
    ReplicaId,
    Tid,
    csn,
    epoch_of,
    parse_part_id,
    part_id,
    replica_id,
    sequence_of,
)

EPOCHS = st.integers(0, CSN_MAX >> 31)
SEQUENCES = st.integers(0, SEQUENCE_MAX)
REPLICAS = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True)
NUMBERS = st.integers(0, CSN_MAX)


@given(EPOCHS, SEQUENCES)
def test_a_csn_holds_epoch_and_sequence(epoch: int, sequence: int) -> None:
    """Both numbers come back out of a CSN."""
    value = csn(epoch, sequence)
    assert (epoch_of(value), sequence_of(value)) == (epoch, sequence)
    assert 0 <= value <= CSN_MAX


@pytest.mark.scenario("S19")
@given(st.tuples(EPOCHS, SEQUENCES), st.tuples(EPOCHS, SEQUENCES))
def test_csns_order_as_epoch_then_sequence(one: tuple[int, int], other: tuple[int, int]) -> None:
    """The order of CSNs as integers is that of the log, within an epoch and across epochs."""
    assert (csn(*one) < csn(*other)) == (one < other)


@pytest.mark.scenario("S19")
def test_the_edges_of_a_csn() -> None:
    """The smallest, the last of an epoch, the first of the next and the largest number."""
    assert csn(0, 0) == CSN_NONE == 0
    assert csn(0, 1) == CSN_IMPORT == 1
    assert csn(0, SEQUENCE_MAX) + 1 == csn(1, 0) == 2**31
    assert csn(CSN_MAX >> 31, SEQUENCE_MAX) == CSN_MAX == 2**63 - 1


@pytest.mark.parametrize(("epoch", "sequence"), [(0, -1), (0, 2**31), (-1, 0), (2**32, 0)])
def test_a_number_out_of_range_is_refused(epoch: int, sequence: int) -> None:
    """A sequence that ran over, or an epoch beyond 64 bits, never becomes a CSN (Z1)."""
    with pytest.raises(ValueError, match="outside"):
        csn(epoch, sequence)


@given(NUMBERS, REPLICAS, NUMBERS, NUMBERS)
def test_a_tid_reads_back(snapshot: int, home: str, boot: int, counter: int) -> None:
    """The textual form of a tid says all of it."""
    tid = Tid(Csn(snapshot), ReplicaId(home), boot, counter)
    assert Tid.parse(str(tid)) == tid


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1-r1-1",
        "1-r1-1-1-1",
        "x-r1-1-1",
        "1-R1-1-1",
        "1-1r-1-1",
        "-1-r1-1-1",
        "1-r1-1-1 ",
        "1-r-1-1\n",
        "01-r1-1-1",
        "1-r1-1-+1",
        "\u0661-r1-1-1",
    ],
)
def test_what_is_no_tid_is_refused(text: str) -> None:
    """Text of another form is no tid."""
    with pytest.raises(ValueError, match="not a tid"):
        Tid.parse(text)


@given(REPLICAS, NUMBERS, NUMBERS)
def test_a_part_id_reads_back(replica: str, boot: int, counter: int) -> None:
    """The textual form of a part id says all of it."""
    assert parse_part_id(part_id(ReplicaId(replica), boot, counter)) == (replica, boot, counter)


@pytest.mark.parametrize("text", ["", "r1-1", "r1-1-x", "R-1-1", "r1-1-1-1", "r1-01-1", "r1-1-1\n"])
def test_what_is_no_part_id_is_refused(text: str) -> None:
    """Text of another form is no part id."""
    with pytest.raises(ValueError, match="not a part id"):
        parse_part_id(text)


@pytest.mark.parametrize("text", ["", "1r", "R1", "r-1", "r.1", "é", "r" * 33, "r1\n"])
def test_what_is_no_replica_id_is_refused(text: str) -> None:
    """A replica id is short, lower case and safe in paths, tids and part ids."""
    with pytest.raises(ValueError, match="replica id"):
        replica_id(text)


def test_replica_ids_that_people_use_are_taken() -> None:
    """Ordinary names pass."""
    assert [replica_id(text) for text in ("r1", "replica_2", "a" * 32)] == ["r1", "replica_2", "a" * 32]
