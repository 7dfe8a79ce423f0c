"""Tests of the writer of histories: what the independent checkers can read, and nothing of the product."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos.record import history
from chaos.record.history import History, ended, lines
from tests.checkers.operations import Append, End, Read, load


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the history goes: into a folder that is not there yet."""
    return tmp_path / "histories" / "lists.jsonl"


@pytest.fixture
def written(path: Path) -> Iterator[History]:
    """Return a history whose clock counts from 5."""
    clock = itertools.count(5)
    with closing(History(path, clock_ns=lambda: next(clock))) as history_:
        yield history_


def test_the_checkers_read_what_is_written(path: Path, written: History) -> None:
    """A transaction has its operations, its moments and all facts."""
    process = written.process()
    process.invoke([["append", "a/1", 7], ["r", "a/1", None]])
    process.ok([["append", "a/1", 7], ["r", "a/1", [7]]], tid="1-r1-1-1", snapshot=1, csn=2, replica="r1")
    [one] = load(path).transactions
    assert (one.end, one.operations) == (End.OK, (Append("a/1", 7), Read("a/1", (7,))))
    assert (one.invoked_ns, one.ended_ns, one.tid, one.snapshot, one.csn) == (5, 6, "1-r1-1-1", 1, 2)
    assert one.fresh


def test_a_process_of_unknown_end_is_never_used_again(path: Path, written: History) -> None:
    """After info the next operation has another number, as the checkers demand."""
    process = written.process()
    for element in (1, 2):
        process.invoke([["append", "a/1", element]])
        process.info([["append", "a/1", element]])
    numbers = [line["process"] for line in lines(path)]
    assert numbers[0] == numbers[1] != numbers[2] == numbers[3]
    assert [one.end for one in load(path).transactions] == [End.INFO, End.INFO]


def test_processes_have_numbers_of_their_own(written: History) -> None:
    """No two processes share a number, also after one was given up."""
    first, second = written.process(), written.process()
    before = first.number
    first.anew()
    assert len({before, first.number, second.number}) == 3


@pytest.mark.usefixtures("written")
def test_a_history_has_one_writer(path: Path) -> None:
    """A file that exists is not written again."""
    with pytest.raises(FileExistsError):
        History(path)


def test_a_torn_line_is_left_out_and_an_open_operation_is_unknown(path: Path, written: History) -> None:
    """A runner that was killed leaves a history that can be judged."""
    process = written.process()
    process.invoke([["add", "s", 1]], "add")
    with path.open("a", encoding="utf-8") as file:
        file.write('{"index":1,"ty')
    [line] = ended(lines(path))
    assert (line["type"], line["f"], line["invoked"]) == ("info", "add", line["time"])


def test_it_imports_nothing_of_the_product() -> None:
    """A mistake of the product must not hide itself in what is written down."""
    tree = ast.parse(Path(history.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert not {name for name in modules if name and name.split(".")[0] in {"tidelock", "tests", "chaos"}}
