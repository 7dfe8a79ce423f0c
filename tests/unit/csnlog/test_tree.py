"""Paths and numbers in names of the ZooKeeper tree."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tidelock.csnlog.core import tree
from tidelock.csnlog.core.ids import CSN_MAX, SEQUENCE_MAX, Csn, PartId, ReplicaId, TableId, Tid, csn


@given(value=st.integers(0, CSN_MAX))
def test_the_path_of_a_record_leads_back_to_its_csn(value: int) -> None:
    """Every CSN of 63 bits has one path, and the path gives the CSN back."""
    assert tree.csn_of(tree.record(Csn(value))) == value


@given(epoch=st.integers(0, 10**9), sequence=st.integers(0, SEQUENCE_MAX))
def test_the_path_of_a_record_is_what_zookeeper_makes_of_the_prefix(epoch: int, sequence: int) -> None:
    """A sequential create with the prefix ends at the path that a follower asks for."""
    made = f"{tree.record_prefix(epoch)}{sequence:010d}"
    assert made == tree.record(csn(epoch, sequence))
    assert made.startswith(f"{tree.epoch_dir(epoch)}/")
    assert tree.sequence_of_name(made.rpartition("/")[2]) == sequence


@pytest.mark.scenario("S19")
def test_names_of_other_width_are_ordered_by_number() -> None:
    """Epochs are numbers: as text, 10 would come before 9 (S19)."""
    paths = [tree.record(csn(epoch, 0)) for epoch in (9, 10, 99, 100)]
    assert sorted(paths) != paths
    assert sorted(paths, key=tree.csn_of) == paths


@pytest.mark.scenario("S20")
@pytest.mark.parametrize(
    "path",
    [
        "csn/0/csn--000000001",  # what ZooKeeper gives beyond 2^31-1 (Z1)
        "csn/0/csn-2147483648",
        "csn/0/csn-000000001",
        "csn/0/csn-00000000001",
        "csn/01/csn-0000000001",
        "csn/-1/csn-0000000001",
        "csn/0/csn-000000000\u0661",  # a digit, but not a decimal one of ASCII
        "csn/0/other",
        "csn/epoch",
        "/csn/0/csn-0000000001",
        "csn/0/csn-0000000001\n",
        "",
    ],
)
def test_what_is_no_record_is_refused(path: str) -> None:
    """A stray or impossible name never becomes a CSN (S20)."""
    with pytest.raises(ValueError, match=r"csn|sequence|path"):
        tree.csn_of(path)


@pytest.mark.parametrize("text", ["", "-1", "+1", "01", " 1", "1 ", "1_0", "0x1", "\u0661", "1.0"])
def test_only_plain_decimal_numbers_are_numbers(text: str) -> None:
    """A text that only Python's int() accepts is refused."""
    with pytest.raises(ValueError, match="not a decimal number"):
        tree.number(text)


@given(value=st.integers(0, 10**30))
def test_numbers_have_any_width(value: int) -> None:
    """A number is read at every width."""
    assert tree.number(str(value)) == value


@given(text=st.text())
def test_a_label_is_one_name_whatever_it_holds(text: str) -> None:
    """No character of a label reaches the path, which ends in the XXH3-128 of its UTF-8 text."""
    directory, _, name = tree.label(text).rpartition("/")
    assert directory == tree.LABELS
    assert name == xxhash.xxh3_128(text.encode()).hexdigest()
    assert len(name) == 32


def test_every_path_stands_where_the_protocol_says() -> None:
    """The tree is that of docs/protocol.md#zookeeper-tree."""
    replica, table = ReplicaId("r1"), TableId("sales.orders")
    assert [
        *(tree.CLUSTER, tree.EPOCH, tree.HEAD, tree.TAIL, tree.HORIZON),
        *(tree.replica(replica), tree.session(replica), tree.alive(replica), tree.progress(replica)),
        *(tree.table(table), tree.lock_dir(table), tree.lock(table, PartId("r1-1-1")), tree.pin("p1")),
        *(tree.wide_dir(table), tree.wide_lock(table, "partition", "y=1", Tid(csn(0, 7), replica, 2, 3))),
    ] == [
        *("cluster", "csn/epoch", "csn/head", "csn/tail", "csn/horizon"),
        *("replicas/r1", "replicas/r1/session", "replicas/r1/alive", "replicas/r1/progress"),
        *("tables/sales.orders", "locks/sales.orders", "locks/sales.orders/r1-1-1", "pins/p1"),
        "locks/sales.orders/wide",
        f"locks/sales.orders/wide/partition-{xxhash.xxh3_128(b'y=1').hexdigest()}-7-r1-2-3",
    ]
