"""When a part may be declared lost: what the replicas say, and which of them the operator has named."""

from __future__ import annotations

import pytest

from tidelock.csnlog.core.ids import Csn, PartId, TableName
from tidelock.csnlog.core.model import AddPart, DefineTable, Manifest, TidRecord
from tidelock.replica_agent.services.lost_parts import FoundPart, lost_part, refusal
from tidelock.wire.cluster import PartHolder

_PART, _MANIFEST = PartId("r1-1-1"), PartId("r1-1-2")
_ADDED = AddPart(TableName("d.t"), _PART, "", 5, 10, "0" * 32)
_PLAIN = FoundPart(Csn(7), TidRecord("6-r1-1-1", (_ADDED,)), _ADDED)
_LISTED = FoundPart(Csn(7), TidRecord("6-r1-1-1", manifest=Manifest(_MANIFEST, 9, "0" * 32, 2)), None)


def words(**said: str) -> list[PartHolder]:
    """Return the words of replicas at CSN 6, or, with a number behind the word, at another CSN."""
    found = []
    for replica, text in said.items():
        word, _, csn = text.partition("@")
        found.append(PartHolder(replica, word, int(csn or 6)))  # type: ignore[arg-type]
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
        (_LISTED, words(r1="lacks", r2="lacks"), [], None),
        (_LISTED, words(r1="lacks", r2="lacks@7"), [], "r2 has applied it"),
        (_LISTED, words(r1="lacks", r2="silent@7"), ["r2"], "r2 has applied it"),
    ],
)
def test_a_part_is_lost_when_nobody_may_hold_it(
    found: FoundPart, said: list[PartHolder], without: list[str], why: str | None
) -> None:
    """One holder, or one silent replica that is not named, is enough to refuse it."""
    told = refusal(found, said, without)
    assert (told is None) == (why is None)
    assert why is None or why in (told or "")


def test_a_manifest_beside_a_definition_is_not_given_up() -> None:
    """The table exists in ZooKeeper: without its definition no replica could apply what follows."""
    defined = TidRecord(
        "6-r1-1-1", (DefineTable(TableName("d.t"), 0, {}),), Manifest(_MANIFEST, 9, "0" * 32, 2)
    )
    told = refusal(FoundPart(Csn(7), defined, None), words(r1="lacks"), [])
    assert told is not None
    assert "defines a table" in told


def test_a_part_is_found_in_its_record() -> None:
    """Parts and manifests are named by their ids; other transactions do not add them."""
    assert lost_part(Csn(7), _PLAIN.tid, _PART) == _PLAIN
    assert lost_part(Csn(7), _LISTED.tid, _MANIFEST) == _LISTED
    assert lost_part(Csn(7), _PLAIN.tid, _MANIFEST) is None
