"""Carriers in the log: proposals with entries of several transactions, committed or refused as one."""

from __future__ import annotations

import pytest

from tests.support.machines.committing import ITEMS, ORDERS, Bench, proposal, records, tid
from tidelock.csnlog.core import codec, tree
from tidelock.csnlog.core.batch import LogLimits, Proposal, Queued, too_large
from tidelock.csnlog.core.commit_errors import to_error
from tidelock.csnlog.core.committer_messages import Cause, Rejected, Undecided
from tidelock.csnlog.core.ids import Csn, ReplicaId
from tidelock.csnlog.core.model import LabelState, TidRecord
from tidelock.csnlog.core.results import Committed
from tidelock.csnlog.core.store import Create, SetData
from tidelock.errors import CommitUnknownError, LabelExistsError, TableChangedError


def carrier(counter: int, *riders: TidRecord) -> Proposal:
    """A carrier with riders that write to the table orders."""
    return Proposal(TidRecord(tid(counter)), {ORDERS: 0}, riders=riders)


def rider(counter: int, of: int, label: str | None = None) -> TidRecord:
    """A rider that has one row in the table orders."""
    return TidRecord(tid(counter), label=label, carrier=tid(of), rows={ORDERS: 1})


def test_a_carrier_and_its_riders_are_in_one_record() -> None:
    """The caller of the carrier is answered; the log has all of them at its CSN, with their labels."""
    bench = Bench()
    bench.propose(proposal(9))
    bench.serve_all()
    bench.propose(carrier(1, rider(2, 1, "a"), rider(3, 1)))
    bench.serve_all()
    assert bench.decision(1) == Committed(Csn(3))
    assert bench.log() == {tid(9): [2], tid(1): [3], tid(2): [3], tid(3): [3]}
    assert records(bench.tree)[-1][1].tids[1] == rider(2, 1, "a")
    label = bench.tree.get(tree.label("a"))
    assert label is not None
    assert codec.decode_label(label.data) == LabelState(tid(2))
    assert set(bench.verdicts) == {tid(9), tid(1)}


def test_a_label_in_the_way_of_a_rider_refuses_the_carrier_alone() -> None:
    """The error says which riders it concerns; other proposals of the batch are sent again."""
    bench = Bench()
    bench.apply(
        (Create(tree.LABELS + "/x"), Create(tree.label("a"), codec.encode_label(LabelState("other"))))
    )
    bench.propose(proposal(9))
    late = carrier(1, rider(2, 1, "a"), rider(3, 1, "b"))
    bench.propose(late, proposal(4))
    bench.serve_all()
    refused = Rejected(Cause.LABEL_EXISTS, tree.label("a"))
    assert bench.decision(1) == refused
    assert set(bench.log()) == {tid(9), tid(4)}
    error = to_error(late, refused)
    assert isinstance(error, LabelExistsError)
    assert error.details["riders"] == [tid(2)]


def test_a_changed_table_concerns_the_riders_that_write_to_it() -> None:
    """A rider of another table of the same carrier may go on."""
    bench = Bench()
    bench.apply((SetData(tree.table(ORDERS), b"changed"),))
    other = TidRecord(tid(3), carrier=tid(1), rows={ITEMS: 1})
    late = Proposal(TidRecord(tid(1)), {ORDERS: 0, ITEMS: 0}, riders=(rider(2, 1), other))
    bench.propose(late)
    bench.serve_all()
    error = to_error(late, bench.decision(1))  # type: ignore[arg-type]
    assert isinstance(error, TableChangedError)
    assert error.details["riders"] == [tid(2)]
    assert bench.log() == {}


def test_an_error_that_concerns_all_names_no_rider() -> None:
    """A doubt has no riders to name: nobody may go on before it is settled."""
    late = carrier(1, rider(2, 1))
    assert to_error(late, Rejected(Cause.QUEUE_FULL, "3")).details["riders"] == []
    assert isinstance(doubt := to_error(late, Undecided()), CommitUnknownError)
    assert "riders" not in doubt.details
    assert "riders" not in to_error(proposal(1), Rejected(Cause.QUEUE_FULL, "3")).details


def test_riders_count_as_transactions_of_a_record() -> None:
    """batch_tids_max holds for entries; a carrier that exceeds it alone is not cut."""
    bench = Bench(limits=LogLimits(batch_tids_max=4))
    bench.serve_all()
    bench.propose(proposal(9))  # the others collect while it is on its way
    bench.propose(carrier(1, rider(2, 1), rider(3, 1)), proposal(4), carrier(5, rider(6, 5)))
    bench.propose(carrier(7, *(rider(n, 7) for n in range(10, 16))))
    bench.serve_all()
    assert [len(record.tids) for _, record in records(bench.tree)[2:]] == [1, 4, 2, 7]


def test_two_carriers_with_one_label_travel_apart() -> None:
    """The second is refused because of the first, and not together with it."""
    bench = Bench()
    bench.serve_all()
    bench.propose(proposal(9))
    bench.propose(carrier(1, rider(2, 1, "a")), carrier(3, rider(4, 3, "a")), proposal(5, label="a"))
    bench.serve_all()
    assert bench.decision(1) == Committed(Csn(3))
    assert bench.decision(3) == bench.decision(5) == Rejected(Cause.LABEL_EXISTS, tree.label("a"))


@pytest.mark.parametrize("lost", [Bench.lose_request, Bench.lose_reply])
def test_a_carrier_in_doubt_is_settled_with_its_riders(lost: object) -> None:
    """They are in the log once, whether the lost multi had landed or not."""
    bench = Bench()
    bench.serve_all()
    bench.propose(carrier(1, rider(2, 1, "a")))
    lost(bench)  # type: ignore[operator]
    bench.serve_all()
    assert bench.decision(1) == Committed(Csn(2))
    assert bench.log() == {tid(1): [2], tid(2): [2]}


def test_the_bytes_of_riders_count() -> None:
    """The size that is expected of a record is that which it gets."""
    item = Queued.of(carrier(1, *(rider(n, 1, f"label {n}") for n in range(2, 40))))
    size = codec.commit_bytes(ReplicaId("r1"), tuple(map(len, item.payloads)))
    assert too_large(item, ReplicaId("r1"), LogLimits(record_bytes_max=size)) is None
    found = too_large(item, ReplicaId("r1"), LogLimits(record_bytes_max=size - 1))
    assert found == ("record_bytes_max", size - 1, size)
