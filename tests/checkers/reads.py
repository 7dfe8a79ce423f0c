"""How much of a read came from the store, and how much is the transaction's own. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.checkers.operations import Append, Element, Elements, Read, Transaction, Write


@dataclass(frozen=True, slots=True)
class OwnView:
    """The reads of one transaction, taken apart.

    Attributes:
        external: By key, the list without the transaction's own elements. Those stand behind the others while
            the transaction is open; where its commit places them is only known afterwards.
        contradictions: A sentence for each read that does not fit the transaction's own earlier operations.
    """

    external: dict[str, Elements] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)


def own_view(transaction: Transaction) -> OwnView:
    """Return the reads of a transaction, taken apart."""
    view = OwnView()
    own: dict[str, list[Element]] = {}
    replaced: set[str] = set()
    for operation in transaction.operations:
        match operation:
            case Append(key, element):
                own.setdefault(key, []).append(element)
            case Write(key, element):
                own[key] = [element]
                replaced.add(key)
            case Read(key, elements):
                if elements is not None:
                    _take_apart(view, key, elements, tuple(own.get(key, ())), whole=key in replaced)
    return view


def _take_apart(view: OwnView, key: str, found: Elements, own: Elements, *, whole: bool) -> None:
    """Add one read to the view; ``whole``: the transaction has replaced the list before."""
    before = found[: len(found) - len(own)]
    if found[len(before) :] != own:
        view.contradictions.append(f"expected {key} to end with its own {list(own)}, found {list(found)}")
    elif whole:
        if before:
            view.contradictions.append(f"expected {key} to be its own {list(own)}, found {list(found)}")
    elif (first := view.external.setdefault(key, before)) != before:
        view.contradictions.append(
            f"expected {key} to begin with {list(first)} as read before, found {list(found)}"
        )
