"""The checks of a history by the invariants of docs/design/invariants.md, each by its name.

White box: the order of all commits is known from the CSN log, so every check is one pass and stronger than
what can be concluded from reads alone (docs/design/invariants.md#how-histories-are-judged). What a client saw
is compared with the log, never with what another client saw only.

The checks are useless unless they can fail: tests/unit/workloads/test_checker.py has a bad history for each
of them.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tidelock.csnlog.core.ids import SEQUENCE_BITS
from workloads.history import Balance, CallEnd, CallHistory, Listing, LoggedPart, LogLine, TablesRead, Write

#: Number of reported violations of one invariant; more of them would add nothing.
SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """A violation of an invariant, and its description."""

    invariant: str
    what: str


class HistoryFacts:
    """A history, and the facts that follow from its log."""

    def __init__(self, history: CallHistory) -> None:
        self.history = history
        self.tables = {listing.table for listing in history.listings}

    @cached_property
    def csn_of(self) -> dict[str, int]:
        """The CSN of each tid: its first place in the log."""
        csns: dict[str, int] = {}
        for line in self.history.log:
            for logged in line.tids:
                csns.setdefault(logged.tid, line.csn)
        return csns

    @cached_property
    def parts(self) -> dict[str, list[tuple[int, LoggedPart]]]:
        """Each part that the log adds with its CSN, by table."""
        by_table: dict[str, list[tuple[int, LoggedPart]]] = defaultdict(list)
        for line in self.history.log:
            for logged in line.tids:
                for part in logged.added:
                    by_table[part.table].append((line.csn, part))
        return by_table

    @cached_property
    def removals(self) -> dict[str, list[tuple[int, str]]]:
        """CSN and tid of each removal in the log, by part."""
        by_part: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for line in self.history.log:
            for logged in line.tids:
                for part in logged.removed:
                    by_part[part].append((line.csn, logged.tid))
        return by_part

    @cached_property
    def by_key(self) -> dict[str, Write]:
        """The writes by their keys."""
        return {write.key: write for write in self.history.writes}

    @cached_property
    def by_tid(self) -> dict[str, Write]:
        """The writes by their tids."""
        return {write.tid: write for write in self.history.writes if write.tid is not None}

    @property
    def acknowledged(self) -> list[tuple[Write, int]]:
        """The writes that ended ok, with their CSNs."""
        return [(write, write.csn) for write in self.history.ended(CallEnd.OK) if write.csn is not None]

    def expected(self, listing: Listing) -> frozenset[LoggedPart]:
        """Return the parts that a list must show according to the log."""
        return frozenset(
            part
            for csn, part in self.parts.get(listing.table, ())
            if csn <= listing.csn and not self.removed(part, listing.csn)
        )

    def removed(self, part: LoggedPart, at: int) -> bool:
        """Return whether a part is removed at a CSN according to the log."""
        return any(csn <= at for csn, _ in self.removals.get(part.part, ()))


def unique(facts: HistoryFacts) -> Iterator[str]:
    """A tid has at most one CSN, and is in the log at most once; a CSN is assigned once."""
    for csn, count in Counter(line.csn for line in facts.history.log).items():
        if count > 1:
            yield f"CSN {csn} stands {count} times in the log"
    places: dict[str, list[int]] = defaultdict(list)
    for line in facts.history.log:
        for logged in line.tids:
            places[logged.tid].append(line.csn)
    for tid, csns in places.items():
        if len(csns) > 1:
            yield f"{tid} stands in the log at {csns}"
    heard: dict[str, set[int]] = defaultdict(set)
    for write, csn in facts.acknowledged:
        heard[write.tid or write.key].add(csn)
    for answer in facts.history.outcomes:
        if answer.csn is not None:
            heard[answer.tid].add(answer.csn)
    for tid, several in heard.items():
        if len(several) > 1:
            yield f"clients received different CSNs for {tid}: {sorted(several)}"


def monotone(facts: HistoryFacts) -> Iterator[str]:
    """The log has no gap, and a commit that begins after an acknowledgement gets a larger CSN."""
    for before, after in itertools.pairwise(facts.history.log):
        if after.csn != (following := _number_after(before)):
            yield f"after CSN {before.csn} the log has {after.csn}, expected {following}"
    acknowledged = sorted((write.ended_ns, csn, write.key) for write, csn in facts.acknowledged)
    asked = sorted((write.asked_ns or 0, csn, write.key) for write, csn in facts.acknowledged)
    highest, of = -1, ""
    behind = 0
    for asked_ns, csn, key in asked:
        while behind < len(acknowledged) and acknowledged[behind][0] < asked_ns:
            _, known, whose = acknowledged[behind]
            behind += 1
            if known > highest:
                highest, of = known, whose
        if csn <= highest:
            yield f"{key} was asked for after {of} had got CSN {highest}, and got {csn}"


def _number_after(line: LogLine) -> int:
    return ((line.csn >> SEQUENCE_BITS) + 1) << SEQUENCE_BITS if line.end else line.csn + 1


def atomic(facts: HistoryFacts) -> Iterator[str]:
    """A transaction is visible in both tables, with all its rows, or in none."""
    for read in facts.history.reads:
        for key, balance in read.rows.items():
            write = facts.by_key.get(key)
            if balance.sum_a + balance.sum_b != 0 or (
                write and (balance.rows_a, balance.rows_b) != write.rows
            ):
                yield f"{_reader(read)} found {balance} of {key}, which wrote {write and write.rows} rows"
    listed: dict[tuple[str, int], dict[str, frozenset[LoggedPart]]] = defaultdict(dict)
    for listing in facts.history.listings:
        listed[listing.replica, listing.csn][listing.table] = listing.parts
    for (replica, csn), by_table in listed.items():
        for line in facts.history.log:
            for logged in line.tids:
                there = [
                    part in by_table[part.table]
                    for part in logged.added
                    if part.table in by_table and not facts.removed(part, csn)
                ]
                if any(there) and not all(there):
                    yield f"{replica} lists {sum(there)} of {len(there)} parts of {logged.tid} at CSN {csn}"


def durable(facts: HistoryFacts) -> Iterator[str]:
    """Every acknowledged write, and every write in the log, is visible from its CSN on."""
    acknowledged = sorted(facts.acknowledged, key=lambda item: item[1])
    for read in facts.history.reads:
        for write, csn in acknowledged:
            if csn > read.csn:
                break
            if write.key not in read.rows:
                yield f"{_reader(read)} misses {write.key}, acknowledged at CSN {csn}"
    for write, csn in acknowledged:
        if write.tid not in facts.csn_of:
            yield f"{write.key} was acknowledged at CSN {csn}, and the log does not have {write.tid}"
    for listing in facts.history.listings:
        for part in facts.expected(listing) - listing.parts:
            yield f"{_lister(listing)} lacks {part}"


def no_dirty(facts: HistoryFacts) -> Iterator[str]:
    """No row of a transaction that is rolled back, undecided, or committed later is visible."""
    for read in facts.history.reads:
        for key in read.rows:
            write = facts.by_key.get(key)
            csn = facts.csn_of.get(write.tid) if write and write.tid else None
            if csn is None or csn > read.csn:
                yield f"{_reader(read)} found rows of {key} ({write and write.end}), whose CSN is {csn}"
    for listing in facts.history.listings:
        for part in listing.parts - facts.expected(listing):
            yield f"{_lister(listing)} has {part}"


def snapshot(facts: HistoryFacts) -> Iterator[str]:
    """Two reads at one CSN return the same rows, on any replica."""
    rows: dict[int, TablesRead] = {}
    for read in facts.history.reads:
        first = rows.setdefault(read.csn, read)
        if first.rows != read.rows:
            yield f"{_reader(first)} and {_reader(read)} differ: {_difference(first.rows, read.rows)}"
    for first_list, again in _pairs(facts.history.listings):
        if first_list.parts != again.parts:
            yield f"{_lister(first_list)} and {_lister(again)} differ by {first_list.parts ^ again.parts}"


def no_conflict(facts: HistoryFacts) -> Iterator[str]:
    """A part is removed once, and only after it was added: of two that remove it one is refused."""
    created = {part.part: csn for added in facts.parts.values() for csn, part in added}
    for part, removals in facts.removals.items():
        if len(removals) > 1:
            yield f"part {part} is removed by {' and '.join(f'{tid} at CSN {csn}' for csn, tid in removals)}"
        for csn, tid in removals:
            if created.get(part, csn) >= csn:
                yield f"{tid} removes part {part} at CSN {csn}, which is added at {created.get(part)}"


def honest(facts: HistoryFacts) -> Iterator[str]:
    """Every part that a replica lists can be downloaded, byte by byte."""
    for download in facts.history.downloads:
        if download.found != download.listed:
            yield (
                f"{download.replica} lists {download.part} at CSN {download.csn} with {download.listed} "
                f"and gives {download.found}"
            )


def agree(facts: HistoryFacts) -> Iterator[str]:
    """All replicas list the same parts at the same CSN."""
    for first, other in _pairs(facts.history.listings):
        if first.replica != other.replica and first.parts != other.parts:
            yield f"{_lister(first)} and {_lister(other)} differ by {first.parts ^ other.parts}"


def monotone_reads(facts: HistoryFacts) -> Iterator[str]:
    """A session never goes back behind what it has committed or read."""
    steps: dict[str, list[tuple[int, int, bool, str]]] = defaultdict(list)
    for write in facts.history.writes:
        if write.snapshot is not None:
            steps[write.process].append((write.asked_ns or 0, write.snapshot, True, f"began {write.key}"))
        if write.csn is not None:
            steps[write.process].append((write.ended_ns, write.csn, False, f"committed {write.key}"))
    for read in facts.history.reads:
        steps[read.process].append((read.ns, read.csn, not read.exact, f"read on {read.replica}"))
    for process, taken in steps.items():
        highest, how = -1, ""
        for _, csn, bound, what in sorted(taken):
            if bound and csn < highest:
                yield f"{process} {what} at CSN {csn}, after it {how} at {highest}"
            if csn > highest:
                highest, how = csn, what


def truthful(facts: HistoryFacts) -> Iterator[str]:
    """Ok, refused and unknown match the log, and every replica reports the same outcome of each tid."""
    for write, csn in facts.acknowledged:
        if (log_csn := facts.csn_of.get(write.tid or "")) != csn:
            yield f"{write.key} was acknowledged at CSN {csn}; the log has {write.tid} at {log_csn}"
    for write in facts.history.ended(CallEnd.OK):
        if write.csn is None:
            yield f"{write.key} was acknowledged without a CSN"
    for write in facts.history.ended(CallEnd.FAIL):
        if write.tid in facts.csn_of:
            yield f"{write.key} was refused ({write.error}); the log has it at {facts.csn_of[write.tid]}"
    replicas = {answer.replica for answer in facts.history.outcomes} - facts.history.gone
    asked: dict[str, set[str]] = defaultdict(set)
    for answer in facts.history.outcomes:
        asked[answer.tid].add(answer.replica)
        log_csn = facts.csn_of.get(answer.tid)
        expected = ("aborted", None) if log_csn is None else ("committed", log_csn)
        if (answer.outcome, answer.csn) != expected:
            yield (
                f"{answer.replica} says {answer.outcome} at {answer.csn} of {answer.tid}; the log says "
                f"{expected}"
            )
    for write in facts.history.ended(CallEnd.INFO):
        if write.tid is not None and (silent := replicas - asked[write.tid]):
            yield f"{write.key} ended unknown, and {sorted(silent)} did not report the outcome of {write.tid}"
    for line in facts.history.log:
        added = {logged.tid: logged.added for logged in line.tids}
        carriers = {logged.carrier for logged in line.tids}
        for tid, _, _, compaction, carrier in line.tids:
            if compaction or tid in facts.by_tid or tid in facts.history.elsewhere or tid in carriers:
                continue
            if any(part.table in facts.tables for part in added.get(carrier or tid, ())):
                yield f"the log has {tid} at CSN {line.csn}, which no client has requested"


INVARIANTS: Final[Mapping[str, Callable[[HistoryFacts], Iterator[str]]]] = {
    "I1 UNIQUE": unique,
    "I2 MONOTONE": monotone,
    "I3 ATOMIC": atomic,
    "I4 DURABLE": durable,
    "I5 NODIRTY": no_dirty,
    "I6 SNAPSHOT": snapshot,
    "I7 NOCONFLICT": no_conflict,
    "I9 HONEST": honest,
    "I10 AGREE": agree,
    "I11 MONOREAD": monotone_reads,
    "I17 TRUTHFUL": truthful,
}


def check(history: CallHistory) -> list[InvariantViolation]:
    """Return the violations of the invariants, at most SHOWN for each of them."""
    facts = HistoryFacts(history)
    return [
        InvariantViolation(name, what)
        for name, find in INVARIANTS.items()
        for what in itertools.islice(find(facts), SHOWN)
    ]


def _pairs(listings: Iterable[Listing]) -> Iterator[tuple[Listing, Listing]]:
    """Yield each list with the first list of the same table and CSN."""
    first: dict[tuple[str, int], Listing] = {}
    for listing in listings:
        yield first.setdefault((listing.table, listing.csn), listing), listing


def _difference(one: Mapping[str, Balance], other: Mapping[str, Balance]) -> dict[str, object]:
    keys = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return {key: (one.get(key), other.get(key)) for key in sorted(keys)[:SHOWN]}


def _reader(read: TablesRead) -> str:
    return f"{read.process} at CSN {read.csn} on {read.replica}"


def _lister(listing: Listing) -> str:
    return f"{listing.replica}'s list of {listing.table} at CSN {listing.csn}"
