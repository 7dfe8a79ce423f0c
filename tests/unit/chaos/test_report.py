"""The report of a chaos run: a person sees in it which fault, which transaction, which invariant."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from chaos import report
from chaos.report import __main__ as command_line
from chaos.report.logs import lines_about
from chaos.report.model import Run, parsed, run_of
from chaos.report.series import CsnScale, Window, binned, longest_gap, paths, spread, stretches
from chaos.report.stories import stories
from chaos.report.summary import availability, doubts, errors
from chaos.report.timeline import rows
from tests.unit.chaos.made_runs import HOSTILE, KINDS, LOST_FAULT, LOST_TID, Line, kept, run_lines
from tidelock.csnlog.core import ids

#: Elements of HTML that have no end.
_VOID = {"meta", "br", "link", "img", "hr", "input"}
_SECOND = 1_000_000_000


class _Reader(HTMLParser):
    """Reads a page, and finds what is not closed, what is loaded, and what is said in which place."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.anchors: list[str] = []
        self.loaded: list[str] = []
        self.scripts = 0
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self.scripts += tag == "script"
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "href" and (value or "").startswith("#"):
                self.anchors.append((value or "")[1:])
            elif name in {"href", "src", "srcset", "data", "action"}:
                self.loaded.append(f"{tag} {name}={value}")
            elif name.startswith("on"):
                self.wrong.append(f"{tag} has {name}")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def read(folder: Path) -> _Reader:
    """Write the report of a folder, and read it as a browser does: well formed and self-contained."""
    page = report.write(folder).read_text(encoding="utf-8")
    reader = _Reader(page)
    assert (reader.wrong, reader.open) == ([], [])
    assert reader.loaded == []
    assert len(reader.ids) == len(set(reader.ids))
    assert set(reader.anchors) <= set(reader.ids)
    assert not re.search(r"https?://|@import|url\(", page)
    return reader


def told(lines: Iterable[Line]) -> Run:
    """Return the run that lines tell of."""
    return run_of(parsed(json.dumps(line) for line in lines))


def section(folder: Path, number: int) -> str:
    """Return the text of the story of a violation."""
    page = report.write(folder).read_text(encoding="utf-8")
    [found] = re.findall(rf'<section class="story" id="violation-{number}">.*?</section>', page, re.DOTALL)
    return _Reader(found).text


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run with two violations."""
    lines = run_lines(minutes=3, commits=600, reads=900, faults=25, failing=True)
    return kept(tmp_path_factory.mktemp("failing"), lines)


def test_the_story_names_fault_transaction_and_invariant(failing: Path) -> None:
    """A person sees in the story of a planted violation what was broken, for whom, and what acted then."""
    story = section(failing, 1)
    assert "Broken invariant: I4 DURABLE" in story
    assert f"Transaction: {LOST_TID}" in story
    fault = f"{LOST_FAULT} ({KINDS[LOST_FAULT - 1]}) of r3, which acted at the moment, since 1.50 s"
    assert f"Nearest faults: {fault}" in story
    assert "r3 gave no answer for 0.5 s" in story  # the proof of the fault
    assert "transfers, writer7" in story  # the call that was acknowledged
    assert "serving, then no answer" in story  # r3 at the moment
    assert "expected 3 rows" in story


def test_each_violation_and_each_fault_has_its_place(failing: Path) -> None:
    """Markers and bands of the timeline lead to a story and to a line of the table."""
    reader = read(failing)
    assert {"violation-1", "violation-2"} <= set(reader.anchors)
    assert {f"fault-{number}" for number in range(1, 26)} <= set(reader.anchors)
    assert "seed 1" in reader.text
    assert "failed" in reader.text
    assert "make chaos SEED=1 MINUTES=3" in reader.text
    assert "25, 24 proven" in reader.text


def test_hostile_text_stays_text(failing: Path) -> None:
    """A message with markup in it is shown as it was, and starts no script."""
    page = report.write(failing).read_text(encoding="utf-8")
    reader = _Reader(page)
    assert reader.scripts == 1
    assert "<script>alert" in reader.text
    assert "<script>alert" not in page
    assert "\x00" in HOSTILE
    assert "\x00" not in page


def test_hostile_text_in_every_field_stays_text(tmp_path: Path) -> None:
    """Names of faults, targets, clients and errors come from elsewhere too: none becomes markup."""
    lines = run_lines(minutes=0.5, commits=20, reads=20, faults=3, failing=True)
    fields = {"kind", "replica", "error", "message", "tid", "workload", "process", "state", "check", "claim"}
    fields |= {"story", "text", "proof", "outcome", "name"}
    hostile = [
        {
            name: HOSTILE if name in fields and isinstance(value, str) else value
            for name, value in line.items()
        }
        for line in lines
    ]
    for line in hostile:
        if "targets" in line:
            line["targets"] = [HOSTILE]
    hostile.append({**lines[0], "what": "run", "seed": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    assert read(kept(tmp_path, hostile)).scripts == 1


def test_an_empty_journal_has_a_report(tmp_path: Path) -> None:
    """A run that ended before its first line is shown as not finished."""
    assert "not finished" in read(kept(tmp_path, [])).text


def test_a_journal_that_was_cut_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    """A run that was killed while it wrote a line loses that line alone, and the report says so."""
    lines = run_lines(minutes=0.5, commits=50, reads=50, faults=3)
    [began] = [at for at, line in enumerate(lines) if line["what"] == "begin" and line["fault"] == 2]
    folder = kept(tmp_path, lines[: began + 2])
    journal = folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-9] + b"\xc3")
    reader = read(folder)
    assert "1 lines of the journal could not be read" in reader.text
    assert "not finished" in reader.text
    assert "fault-2" in reader.ids


def test_a_fault_that_found_nothing_to_harm_is_told_and_not_drawn() -> None:
    """It had begun before it was left out; a band without an end would lie over the rest of the run."""
    begin = {"ns": _SECOND, "what": "begin", "fault": 1, "kind": "part truncated", "targets": ["r1"]}
    left_out = {"ns": 2 * _SECOND, "what": "spared", "fault": 1, "kind": "part truncated", "why": "no part"}
    run = told([begin, left_out])
    assert (run.faults, run.spared, run.unread) == ((), ("1 (part truncated): no part",), 0)


def test_lines_of_another_form_are_counted_and_left_out() -> None:
    """Numbers, lists, lines without a moment, and faults without a begin do not end the report."""
    texts = [
        "7",
        "[]",
        "{}",
        '{"ns":1}',
        '{"ns":"x","what":"note"}',
        '{"ns":1,"what":"end","fault":3}',
        "[" * 9000,
    ]
    run = run_of(parsed([*texts, '{"ns":5,"what":"surprise","of":"a later version"}']))
    assert run.unread == len(texts)
    assert [note.text for note in run.notes] == ['surprise: {"of": "a later version"}']


def test_a_run_without_violations_has_passed(tmp_path: Path) -> None:
    """A clean run says so, and which checks have said it."""
    lines = run_lines(minutes=0.5, commits=50, reads=50, faults=3)
    lines.insert(-1, {"ns": lines[-1]["ns"], "what": "judged", "check": "outcomes", "found": 0})
    folder = kept(tmp_path, lines)
    (folder / "result.json").write_text('{"passed": true, "command": "python -m chaos --seed 1"}')
    text = read(folder).text
    assert "passed" in text
    assert "python -m chaos --seed 1" in text
    assert "No check and no workload has found a broken promise." in text
    assert "outcomesclean" in text


def test_a_result_that_is_not_passed_fails_without_violations(tmp_path: Path) -> None:
    """The result decides where the journal lacks what was wrong."""
    folder = kept(tmp_path, run_lines(minutes=0.5, commits=9, reads=9, faults=1))
    (folder / "result.json").write_text('{"passed": false}')
    assert "failed" in read(folder).text
    (folder / "result.json").write_text('{"passed": false, "interrupted": true}')
    assert "interrupted" in read(folder).text


@pytest.mark.slow
def test_the_report_of_an_hour_is_small(tmp_path: Path) -> None:
    """Calls are drawn in bins of time: an hour of load stays below 3 MB, with every fault and every row."""
    folder = kept(tmp_path, run_lines(minutes=60, commits=50_000, reads=100_000, faults=300, failing=True))
    reader = read(folder)
    assert (folder / "report.html").stat().st_size < 3_000_000
    assert {f"fault-{number}" for number in range(1, 301)} <= set(reader.ids)
    assert "From 55:00 to 60:00" in reader.text


def test_thousands_of_violations_stay_small(tmp_path: Path) -> None:
    """A run in which everything is wrong has a report that a browser can show."""
    lines = run_lines(minutes=1, commits=50, reads=50, faults=3)
    wrong = {"what": "violation", "check": "counter", "claim": "EXT", "story": "x" * 2000}
    lines += [
        {"ns": lines[9]["ns"] + n * 1000, "ns_of": lines[9]["ns"] + n * 1000, **wrong} for n in range(5000)
    ]
    text = read(kept(tmp_path, lines)).text
    assert "5,000" in text
    assert "4960 more violations" in text
    assert (tmp_path / "report.html").stat().st_size < 3_000_000


def test_the_picture_is_svg_that_stands_alone(failing: Path, tmp_path: Path) -> None:
    """The picture for documents is well-formed, and refers to nothing but its namespace."""
    text = report.picture(failing, tmp_path / "run.svg", minutes=(0, 1)).read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - made by this test
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    assert "href" not in text
    assert ">1:00<" in text
    assert ">1:10<" not in text


def test_the_command_writes_report_and_picture(
    failing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line writes either, and refuses a folder without a journal."""
    command_line.main([str(failing)])
    command_line.main([str(failing), "--picture", str(tmp_path / "x.svg"), "--minutes", "1", "2"])
    assert capsys.readouterr().out.split() == [str(failing / "report.html"), str(tmp_path / "x.svg")]
    with pytest.raises(SystemExit):
        command_line.main([str(tmp_path)])


def call(ns: int, *, f: str = "write", end: str = "ok", took: int = 0, **more: object) -> Line:
    """Return the line of a call."""
    return {"ns": ns, "what": "call", "f": f, "end": end, "began_ns": ns - took, **more}


def test_bins_count_each_call_once() -> None:
    """The sum over bins is the number of calls, the one at the last moment among them."""
    run = told([call(n * _SECOND // 4, end=("ok", "fail", "info")[n % 3]) for n in range(41)])
    bins = binned(run.calls, Window.over(run.begin_ns, run.end_ns, 7))
    assert [
        sum(b.acknowledged for b in bins),
        sum(b.refused for b in bins),
        sum(b.unknown for b in bins),
    ] == [
        14,
        14,
        13,
    ]


def test_latencies_are_those_of_acknowledged_calls() -> None:
    """A call that was refused at once makes no latency look better."""
    run = told([call(_SECOND, took=_SECOND // 2), call(_SECOND, end="fail"), call(2 * _SECOND, f="read")])
    [first, *_] = [one for one in binned(run.calls, Window.over(0, 2 * _SECOND, 1)) if one.writing]
    assert first.writing == spread([0.5])
    assert spread(range(1, 101)) == spread(reversed(range(1, 101)))
    found = spread([float(n) for n in range(1, 1001)])
    assert found is not None
    assert (found.p50, found.p99, found.largest) == (500.0, 990.0, 1000.0)


def test_the_longest_gap_is_between_acknowledged_commits() -> None:
    """Refused writes and reads do not interrupt a time without commits."""
    lines = [
        call(0),
        call(_SECOND),
        call(2 * _SECOND, end="fail"),
        call(3 * _SECOND, f="read"),
        call(5 * _SECOND),
    ]
    assert longest_gap(told(lines)) == (_SECOND, 5 * _SECOND)
    assert longest_gap(told(lines[:1])) is None


def said(*moments: tuple[float, int | None, str | None]) -> Run:
    """Return a run of what r1 said: seconds, CSN, state."""
    lines: list[Line] = [
        {"ns": int(at * _SECOND), "what": "csn", "replica": "r1", "csn": csn, "state": state}
        for at, csn, state in moments
    ]
    return told({name: value for name, value in line.items() if value is not None} for line in lines)


def test_a_silent_replica_has_a_hole_in_its_line() -> None:
    """No line is drawn over a time without answers: lines that lack, or that say that it was silent."""
    lacking = said(
        (0, 1, "serving"), (1, 2, "serving"), (2, 3, "serving"), (9, 9, "serving"), (10, 9, "serving")
    )
    window = Window.over(0, 10 * _SECOND, 10)
    assert [len(piece) for piece in paths(lacking.said["r1"], window)] == [3, 2]
    states = [(one.state, one.begin_ns // _SECOND) for one in stretches(lacking.said["r1"], window)]
    assert states == [("serving", 0), (None, 2), ("serving", 9)]
    silent = said((0, 1, "serving"), (1, None, "silent"), (2, 2, "starting"), (3, 3, "serving"))
    assert [len(piece) for piece in paths(silent.said["r1"], window)] == [1, 2]
    found = stretches(silent.said["r1"], Window.over(0, 3 * _SECOND, 3))
    assert [(one.state, one.serving) for one in found] == [
        ("serving", True),
        (None, False),
        ("starting", False),
    ]


def test_a_replica_is_shown_while_it_is_a_member() -> None:
    """A replica that has gone, or has not come yet, is not asked: that is no silence."""
    told_of = said((4, 1, "serving"), (5, 2, "serving"), (6, None, "silent"), (8, 3, "serving")).said["r1"]
    found = stretches(told_of, Window.over(0, 20 * _SECOND, 20))
    assert (found[0].begin_ns, found[-1].end_ns) == (4 * _SECOND, 11 * _SECOND)
    assert [one.state for one in found] == ["serving", None, "serving"]
    for begin, end in ((0, 3), (12, 20)):
        assert stretches(told_of, Window.over(begin * _SECOND, end * _SECOND, 10)) == []
    [inside] = stretches(told_of, Window.over(6 * _SECOND, 7 * _SECOND, 10))
    assert inside.state is None


def test_replicas_are_ordered_by_their_numbers() -> None:
    """The tenth comes after the ninth."""
    lines = [{"ns": 1, "what": "csn", "replica": f"r{number}", "csn": 1} for number in (10, 2, 9)]
    assert list(told(lines).said) == ["r2", "r9", "r10"]


def test_a_csn_that_falls_is_drawn_although_its_bin_has_a_later_one() -> None:
    """A snapshot that went back is what a person looks for: a bin must not hide it."""
    run = said(
        (0, 5, "serving"), (0.2, 9, "serving"), (0.4, 2, "serving"), (0.6, 9, "serving"), (10, 9, "serving")
    )
    [piece, *_] = paths(run.said["r1"], Window.over(0, 10 * _SECOND, 10))
    assert 2 in [csn for _, csn in piece]


def test_epochs_follow_each_other_on_the_scale() -> None:
    """An epoch that begins is one step up, not 2^31; CSNs outside the scale are at its ends."""
    scale = CsnScale([ids.csn(0, 10), ids.csn(0, 20), ids.csn(3, 0), ids.csn(3, 4)])
    assert [scale(ids.csn(*csn)) for csn in ((0, 10), (0, 20), (3, 0), (3, 4))] == [0, 10, 11, 15]
    assert [scale(ids.csn(*csn)) for csn in ((0, 1), (9, 1))] == [0, scale.length]


def fault(
    number: int, kind: str, target: str, begin_s: int, end_s: int | None, well_s: int | None
) -> list[Line]:
    """Return the lines of a fault."""
    lines: list[Line] = [
        {"ns": begin_s * _SECOND, "what": "begin", "fault": number, "kind": kind, "targets": [target]}
    ]
    moments = (("end", end_s), ("well", well_s))
    return lines + [
        {"ns": at * _SECOND, "what": what, "fault": number} for what, at in moments if at is not None
    ]


def violation(found_s: int, about_s: int | None, *tids: str) -> Line:
    """Return the line of a violation; the fields of a moment that it lacks are left out."""
    line = {"ns": found_s * _SECOND, "what": "violation", "check": "c", "claim": "I4", "tid": [*tids]}
    return line if about_s is None else {**line, "ns_of": about_s * _SECOND}


def test_the_fault_at_the_home_is_the_nearest_of_those_that_acted() -> None:
    """Of two faults that act, the one at the home of the transaction is first; one long ago is left out."""
    lines = [
        *fault(1, "long before", "r1", 1, 2, 3),
        *fault(2, "elsewhere", "r3", 50, 60, 61),
        *fault(3, "at home", "r1", 48, 60, 61),
        *fault(4, "shortly before", "r2", 40, 44, 45),
        *fault(5, "later at home", "r1", 70, 71, 72),
        *fault(6, "later elsewhere", "r2", 70, 71, 72),
        violation(90, 55, "4-r1-1-1"),
    ]
    run = told(lines)
    [story] = stories(run, run.findings, {"4-r1-1-1": ["r1: a line"]})
    assert [one.fault.fault for one in story.suspects] == [3, 2, 4, 5]
    assert story.suspects[2].relation == "was healed 11.00 s before; its targets were well"
    assert story.suspects[3].relation == "hit the home r1 15.00 s after the moment"
    assert story.log == ("r1: a line",)


def test_a_fault_that_never_ended_acts_until_the_end() -> None:
    """A journal that was cut in a fault shows it as acting, and counts its stall until the last call."""
    run = told([call(0), *fault(1, "killed", "r1", 2, None, None), violation(9, 8), call(10 * _SECOND)])
    [story] = stories(run, run.findings, {})
    assert story.suspects[0].relation == "acted at the moment, since 6.00 s"
    [figures] = availability(run).faults
    assert (figures.writers_s, figures.recovery_s) == (8.0, None)


def test_the_moment_of_a_violation_without_one_is_that_of_its_transaction() -> None:
    """A loss that is found at the end is about the moment at which the commit was acknowledged."""
    run = told([call(4 * _SECOND, tid="1-r1-1-1"), violation(90, None, "1-r1-1-1"), violation(91, None)])
    first, second = stories(run, run.findings, {})
    assert (first.moment_ns, second.moment_ns) == (4 * _SECOND, None)
    assert [one.tid for one in first.calls] == ["1-r1-1-1"]


def test_unknown_outcomes_are_told_apart_by_their_answer() -> None:
    """An answer found by the client, one found at the end, and none at all are three things."""
    lost = "CommitUnknownError"
    run = told(
        [
            call(1, tid="a", error=lost),
            call(2, tid="b", end="info", error=lost),
            call(3, tid="c", end="info", error=lost),
            call(4, tid="d", end="info", error=lost),
            call(5, tid="e", end="fail", error="ConflictError"),
            {"ns": 9, "what": "outcome", "tid": "b", "outcome": "committed", "csn": 7},
            {"ns": 9, "what": "outcome", "tid": "d", "outcome": "running"},
        ]
    )
    assert [(one.call.tid, one.answer) for one in doubts(run)] == [
        ("a", "committed: the client asked for the outcome at once"),
        ("b", "committed with CSN 7"),
        ("c", None),
        ("d", None),
    ]
    assert [(one.error, one.end, one.times) for one in errors(run)] == [
        ("CommitUnknownError", "info", 3),
        ("CommitUnknownError", "ok", 1),
        ("ConflictError", "fail", 1),
    ]


def test_lines_of_logs_are_those_that_name_the_transaction(tmp_path: Path) -> None:
    """A tid that is the beginning of another one does not take its lines; a log is quoted in part only."""
    (tmp_path / "r1.log").write_text("tid=1-r1-1-1 begins\ntid=1-r1-1-11 begins\n" + "again 1-r1-1-1\n" * 99)
    (tmp_path / "r2.log").write_bytes(b"\xff 1-r1-1-1: holds\n")
    found = lines_about(tmp_path, {"1-r1-1-1"})["1-r1-1-1"]
    assert found[0] == "r1: tid=1-r1-1-1 begins"
    assert found[-1] == "r2: \ufffd 1-r1-1-1: holds"
    assert len(found) == 13
    assert lines_about(tmp_path / "none", ["1-r1-1-1"]) == {"1-r1-1-1": []}


def test_a_long_run_is_split_into_rows_without_a_hole() -> None:
    """The rows of a long run follow each other, under one row of the whole."""
    run = told([call(0), call(1000 * _SECOND)])
    whole, *parts = rows(run, linked=True)
    assert (whole.window.begin_ns, whole.window.end_ns) == (0, 1000 * _SECOND)
    ends = [(part.window.begin_ns // _SECOND, part.window.end_ns // _SECOND) for part in parts]
    assert ends == [(0, 300), (300, 600), (600, 900), (900, 1000)]
