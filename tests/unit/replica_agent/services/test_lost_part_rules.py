"""When a part may be declared lost: what the replicas say, and which of them the operator has named."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import Csn, PartId, TableId
from tidelock.csnlog.core.model import AddPart, Manifest, TidRecord
from tidelock.replica_agent.services.lost_parts import FoundPart, applied_part, lost_part, refusal
from tidelock.replica_agent.storage.catalog_reads import PartRow
from tidelock.wire.cluster import PartHolder

_PART, _MANIFEST = PartId("r1-1-1"), PartId("r1-1-2")
_ADDED = AddPart(TableId("d.t"), _PART, "", 5, 10, "0" * 32)
_PLAIN = FoundPart(Csn(7), "6-r1-1-1", _ADDED)
_LISTED = FoundPart(Csn(7), "6-r1-1-1", None)


def words(**said: str) -> list[PartHolder]:
    """Return the words of replicas at CSN 6, or, with a number behind the word, at another CSN.

    Those that answer show a sign of life; a silent one does if its word ends with "!".
    """
    found = []
    for replica, text in said.items():
        word, _, csn = text.removesuffix("!").partition("@")
        alive = word != "silent" or text.endswith("!")
        found.append(PartHolder(replica, word, int(csn or 6), alive=alive))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("found", "said", "without", "why"),
    [
        (_PLAIN, words(r1="lacks", r2="lacks"), [], None),
        (_PLAIN, words(r1="lacks", r2="lacks@9"), [], None),
        (_PLAIN, words(r1="lacks", r2="holds"), [], "r2 holds it"),
        (_PLAIN, words(r1="lacks", r2="holds", r3="silent"), ["r3"], "r2 holds it"),
        (_PLAIN, words(r1="lacks", r2="silent", r3="silent"), ["r2"], "r3 does not answer and may hold it"),
        (_PLAIN, words(r1="lacks", r2="silent", r3="silent"), ["r2", "r3"], None),
        (_PLAIN, words(r1="lacks", r2="lacks"), ["r2"], "r2 is not silent"),
        (_PLAIN, words(r1="lacks", r2="lacks"), ["r9"], "r9 is not silent"),
        (_PLAIN, words(r1="lacks", r2="reads"), [], "r2 still reads it"),
        (_PLAIN, words(r1="reads", r2="silent"), ["r1", "r2"], "r1 still reads it"),
        (_PLAIN, words(r1="lacks", r2="silent!"), [], "r2 shows a sign of life"),
        (_PLAIN, words(r1="lacks", r2="silent!"), ["r2"], "r2 shows a sign of life"),
        (_LISTED, words(r1="lacks", r2="lacks"), [], None),
        (_LISTED, words(r1="lacks", r2="lacks@7"), [], "r2 has applied it"),
        (_LISTED, words(r1="lacks", r2="silent@7"), [], "may hold it, or have applied its transaction"),
        (_LISTED, words(r1="lacks", r2="silent@7"), ["r2"], None),
        (_LISTED, words(r1="lacks", r2="silent"), [], "may hold it, or have applied its transaction"),
        (_LISTED, words(r1="lacks", r2="silent"), ["r2"], None),
        (_LISTED, words(r1="lacks", r2="silent!"), ["r2"], "r2 shows a sign of life"),
        (_LISTED, words(r1="lacks@7", r2="silent"), ["r2"], "r1 has applied it"),
        (_LISTED, words(r1="lacks", r2="reads"), [], "r2 still reads it"),
    ],
)
def test_a_part_is_lost_when_nobody_may_hold_it(
    found: FoundPart, said: list[PartHolder], without: list[str], why: str | None
) -> None:
    """One holder, or one silent replica that is not named, is enough to refuse it."""
    told = refusal(found, said, without)
    assert (told is None) == (why is None)
    assert why is None or why in (told or "")


def test_a_part_is_found_in_its_record() -> None:
    """Parts and manifests are named by their ids; other transactions do not add them."""
    inline = TidRecord("6-r1-1-1", (_ADDED,))
    listed = TidRecord("6-r1-1-1", manifest=Manifest(_MANIFEST, 9, "0" * 32, 2))
    assert lost_part(Csn(7), inline, inline.entries, _PART) == _PLAIN
    assert lost_part(Csn(7), listed, (), _MANIFEST) == _LISTED
    assert lost_part(Csn(7), inline, inline.entries, _MANIFEST) is None


def test_a_part_of_a_large_transaction_is_found_in_its_manifest() -> None:
    """The record of such a transaction has no entries of its own."""
    listed = TidRecord("6-r1-1-1", manifest=Manifest(_MANIFEST, 9, "0" * 32, 2), label="load")
    assert lost_part(Csn(7), listed, (), _PART) is None
    found = lost_part(Csn(7), listed, (_ADDED,), _PART)
    assert found == FoundPart(Csn(7), "6-r1-1-1", _ADDED, "load")


@pytest.mark.parametrize(
    ("kind", "csn", "found"), [("part", 7, _PLAIN), ("manifest", 7, _LISTED), ("part", None, None)]
)
def test_a_part_that_was_applied_is_found_without_the_log(
    kind: str, csn: int | None, found: FoundPart | None
) -> None:
    """The catalog keeps it for longer than the log keeps its record; what is undecided is in no record."""
    row = PartRow(
        part=_PART, table=TableId("d.t"), path="", rows=5, length=10, checksum="0" * 32,
        creation_tid="6-r1-1-1", creation_csn=None if csn is None else Csn(csn), file=None, offset=0,
        blocks=b"", kind=kind, state="wanted",  # type: ignore[arg-type]
    )  # fmt: skip
    assert applied_part(row) == found
