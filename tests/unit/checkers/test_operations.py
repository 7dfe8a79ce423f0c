"""Histories are written as they happen, and read with a clear error for what is malformed."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.checkers.operations import (
    Append,
    End,
    HistoryError,
    MicroOperation,
    Read,
    Recorder,
    Transaction,
    Write,
    load,
    parse,
)


def _line(index: int, kind: str, process: int | str = 0, value: Any = (), **fields: Any) -> str:
    line = {"index": index, "type": kind, "f": "txn", "process": process, "time": index, "value": list(value)}
    return json.dumps(line | fields)


def test_a_written_history_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Each fact of a transaction survives, and invocations are paired with their ends."""
    path = tmp_path / "history.jsonl"
    with Recorder(path, itertools.count(10).__next__) as recorder:
        recorder.invoke(0, [Append("a/1", 5), Read("a/1"), Write("b/1", "ü")])
        recorder.invoke(1, [Read("a/1")])
        recorder.end(1, End.OK, [Read("a/1", ())], snapshot=3, fresh=False)
        done: list[MicroOperation] = [Append("a/1", 5), Read("a/1", (5,)), Write("b/1", "ü")]
        recorder.end(0, End.OK, done, tid="t", snapshot=3, csn=4, replica="r1")
        assert path.read_text(encoding="utf-8").count("\n") == 4
    first, second = load(path).transactions
    assert first == Transaction(3, 0, End.OK, tuple(done), 10, 13, "t", 3, 4, "r1")
    assert second == Transaction(2, 1, End.OK, (Read("a/1", ()),), 11, 12, snapshot=3, fresh=False)
    assert [type(one) for one in first.operations] == [Append, Read, Write]


def test_threads_write_whole_lines_with_unique_numbers(tmp_path: Path) -> None:
    """Clients are threads: no line is torn, and no index is given twice."""
    with Recorder(tmp_path / "history.jsonl") as recorder:

        def work(process: int) -> None:
            for number in range(50):
                recorder.invoke(process, [Append(f"a/{process}", number)])
                recorder.end(process, End.OK, [Append(f"a/{process}", number)])

        threads = [threading.Thread(target=work, args=(process,)) for process in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(load(tmp_path / "history.jsonl").transactions) == 200


def test_an_existing_file_is_not_continued(tmp_path: Path) -> None:
    """Two runs in one file would share processes and elements."""
    (tmp_path / "history.jsonl").touch()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "history.jsonl")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    """A killed process may leave half a line; its transaction then has no end."""
    path = tmp_path / "history.jsonl"
    path.write_text(_line(0, "invoke", value=[["append", "a/1", 1]]) + "\n" + _line(1, "ok")[:30])
    (transaction,) = load(path).transactions
    assert transaction == Transaction(0, 0, End.INFO, (Append("a/1", 1),), 0)


def test_a_whole_last_line_without_newline_counts(tmp_path: Path) -> None:
    """A history from another tool may lack the last newline."""
    path = tmp_path / "history.jsonl"
    path.write_text(_line(0, "invoke") + "\n" + _line(1, "ok"))
    assert load(path).transactions[0].end is End.OK


def test_a_null_read_is_empty_only_in_a_good_end() -> None:
    """A missing list is an empty one where it was read, and unknown where it was not."""
    value = [["r", "a/1", None]]
    history = parse(
        [
            *(_line(0, "invoke", 0, value), _line(1, "ok", 0, value)),
            *(_line(2, "invoke", 1, value), _line(3, "fail", 1, value)),
        ]
    )
    assert [one.operations[0] for one in history.transactions] == [Read("a/1", ()), Read("a/1", None)]


INVOKED = _line(0, "invoke", value=[["append", "a/1", 1]])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{"], "line 1: expected a JSON object"),
        (["[]"], "line 1: expected an object with f, index, process, time, type, value"),
        ([_line(0, "done")], "line 1: expected type invoke, ok, fail or info, found 'done'"),
        ([_line(0, "invoke", f="read")], "line 1: expected f txn, found 'read'"),
        ([_line(0, "invoke", "p")], "line 1: expected a whole number as process, found 'p'"),
        ([_line(0, "invoke", csn="4")], "line 1: expected int or null as csn, found '4'"),
        ([_line(0, "invoke") + " x"], "line 1: expected a JSON object"),
        ([_line(0, "invoke", value=[["cas", "a", 1]])], 'line 1: expected ["append"|"w", key, element]'),
        ([_line(0, "invoke", value=[["r", "a", [[1]]]])], 'line 1: expected ["append"|"w", key, element]'),
        ([_line(3, "invoke"), _line(3, "ok")], "line 2: expected an index above 3, found 3"),
        ([_line(0, "ok")], "line 1: expected an invocation before the end, found 'type ok'"),
        ([INVOKED, _line(1, "invoke")], "line 2: expected the end of process 0's transaction"),
        ([INVOKED, _line(1, "ok")], "line 2: expected the operations of line index 0"),
        ([INVOKED, _line(1, "ok", value=[["w", "a/1", 1]])], "line 2: expected the operations of line"),
        (
            [INVOKED, _line(1, "info", value=[["append", "a/1", 1]]), _line(2, "invoke")],
            "line 3: expected a new process after the end info, found 'process 0 again'",
        ),
        (
            [INVOKED, _line(1, "invoke", 1, [["append", "a/1", 1]])],
            "operation 1: expected elements that are unique in a/1, found 1 again, from operation 0",
        ),
    ],
)
def test_a_malformed_line_is_named_with_expectation_and_finding(lines: list[str], expected: str) -> None:
    """The author of a workload sees at once which line is wrong, and why."""
    with pytest.raises(HistoryError) as error:
        parse(lines)
    assert expected in str(error.value)


def test_one_element_may_be_in_several_keys() -> None:
    """Elements are unique for each key, not for all of them."""
    history = parse([_line(0, "invoke", value=[["append", "a/1", 1], ["append", "a/2", 1]])])
    assert history.writer("a/2", 1) is history.transactions[0]
    assert history.writer("a/3", 1) is None
