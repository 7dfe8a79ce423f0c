"""The outside checker judges the lists of a chaos run: of rows, and at a higher level those of texts."""

from __future__ import annotations

import json
from pathlib import Path

from chaos.record.history import lines
from chaos.workloads.list_append import texts_of
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
    texts = ordered.with_name("list_append.texts.jsonl")
    texts.write_text("".join(json.dumps(line) + "\n" for line in texts_of(lines(ordered))), encoding="utf-8")
    for history, model in ((texts, MODEL), (ordered, MODEL_OF_ROWS)):
        verdict = outside.judged(adya, history, model=model)
        assert verdict.judgement is Judgement.VALID, verdict.text
