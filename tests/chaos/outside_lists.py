"""The outside checker judges the lists of a chaos run: of rows, and at a higher level those of texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chaos.record.history import lines
from chaos.workloads.list_append import ROWS, texts_of
from tests.checkers import outside
from tests.checkers.outside import MODEL, MODEL_OF_ROWS, Judgement


def lack() -> str:
    """Return what this machine lacks for it; "" = nothing."""
    return "" if outside.program() else "adya is not installed; tests/checkers/outside.py says how"


def require_valid(ordered: Path) -> None:
    """Require that it finds nothing in a history of the workload `list_append`; the program is there.

    Args:
        ordered: The history whose lists of rows are in the order of their commits, as its judge has made it.
    """
    adya = outside.program()
    assert adya is not None, lack()
    for name, told, model in (("texts", texts_of, MODEL), ("rows", read_first, MODEL_OF_ROWS)):
        history = ordered.with_name(f"list_append.{name}.jsonl")
        history.write_text(
            "".join(json.dumps(line) + "\n" for line in told(lines(ordered))), encoding="utf-8"
        )
        verdict = outside.judged(adya, history, model=model)
        assert verdict.judgement is Judgement.VALID, verdict.text


def read_first(all_lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a history in which each transaction reads lists of rows before it adds to them.

    Rows that two transactions add at the same time do not exclude each other. One that reads its own row
    may lack a row that has an earlier CSN, so its list is no beginning of the later ones, as the program
    expects. Without the own rows it is the list of its snapshot; that these are read at all is judged by the
    project's own checkers.
    """
    for line in all_lines:
        first, then, own = [], [], set[tuple[str, int]]()
        for name, key, found in line["value"]:
            if name == "r" and key.partition("/")[0] in ROWS:
                kept = None if found is None else [one for one in found if (key, one) not in own]
                first.append([name, key, kept])
            else:
                then.append([name, key, found])
                if name == "append":
                    own.add((key, found))
        yield {**line, "value": [*first, *then]}
