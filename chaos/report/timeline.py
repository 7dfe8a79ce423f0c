"""The timeline of a run as SVG: one row for each few minutes, with all panels of a row on one axis. Pure."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.reading.bands import Band
from chaos.report.elements import element
from chaos.report.model import Finding, Run
from chaos.report.series import (
    Bin,
    CsnScale,
    Spread,
    Stretch,
    Window,
    binned,
    csn_text,
    lanes,
    longest_gap,
    paths,
    stretches,
)

#: Sizes in units of the picture, which is drawn as wide as the page.
WIDTH: Final = 1200
_LEFT, _RIGHT = 172, 14
_GAP, _TRACK, _LANE, _STRIP, _PANEL = 18, 20, 15, 9, 76
#: The distance of two diamonds, at least.
_NEAREST: Final = 2.0
#: The width of a letter of a label.
_LETTER: Final = 6.2
#: Up to here a run is one row; a longer one is a row of the whole, and rows of the second length.
ONE_ROW_S: Final = 420
_ROW_S: Final = 300
#: Bins of a row, at most.
BINS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Row:
    """A part of the timeline: its title, its window, its picture and the height of that."""

    title: str
    window: Window
    group: ET.Element
    height: float

    def picture(self) -> ET.Element:
        """Return it as an element of a page."""
        return element(
            "svg", self.group, viewBox=f"0 0 {WIDTH} {self.height:.0f}", role="img", aria_label=self.title
        )


def rows(run: Run, *, linked: bool) -> list[Row]:
    """Return the rows of a run; `linked`: faults and violations lead to their places in the report."""
    length_s = (run.end_ns - run.begin_ns) / 1e9
    whole = row(run, run.begin_ns, run.end_ns, "The whole run", linked=linked)
    if length_s <= ONE_ROW_S:
        return [whole]
    count = math.ceil(length_s / _ROW_S)
    starts = [run.begin_ns + int(number * _ROW_S * 1e9) for number in range(count)]
    return [
        whole,
        *(
            row(run, start, min(start + int(_ROW_S * 1e9), run.end_ns), None, linked=linked)
            for start in starts
        ),
    ]


def row(
    run: Run, begin_ns: int, end_ns: int, title: str | None, *, linked: bool, bins_max: int = BINS_MAX
) -> Row:
    """Return the timeline of a part of a run; the title None is made of its moments."""
    window = Window.over(begin_ns, end_ns, bins_max)
    canvas = _Canvas(run, window, linked=linked)
    canvas.draw()
    title = title or f"From {run.clock(begin_ns)[:-4]} to {run.clock(end_ns)[:-4]}"
    return Row(title, window, element("g", canvas.parts, class_="row"), canvas.y)


def legend() -> list[tuple[str, str]]:
    """Return what colours and forms mean, as pairs of a class of a sample and its text."""
    return [
        ("ok", "acknowledged"),
        ("refused", "refused"),
        ("unknown", "unknown outcome"),
        ("gap", "longest time without a commit"),
        ("band", "fault acts (with its number)"),
        ("tail", "healed, targets not yet well"),
        ("unproven", "fault without proof"),
        ("notserving", "replica answers, does not serve"),
        ("noanswer", "replica does not answer"),
        ("p50", "median"),
        ("p99", "99th percentile"),
        ("largest", "slowest call of a bin"),
        ("violation", "violation"),
    ]


def sample(class_: str) -> ET.Element:
    """Return a sample of a class of the timeline, 20 wide and 12 high."""
    if class_ in {"p50", "p99"}:
        return element("path", class_=class_, d="M1 6h18")
    if class_ == "largest":
        return element("path", class_=class_, d="M10 6h0")
    if class_ == "violation":
        return element("path", class_=class_, d="M10 0l6 6l-6 6l-6-6z")
    return element("rect", class_=class_, x=1, y=2, width=18, height=9)


class _Canvas:
    """A row as it grows downwards; `y` is the height so far."""

    def __init__(self, run: Run, window: Window, *, linked: bool) -> None:
        self.run = run
        self.window = window
        self.linked = linked
        self.y = 4.0
        self.parts: list[ET.Element] = []
        self.moments: list[tuple[int, Finding]] = []
        self.bins = binned(run.calls, window)
        self.states = {replica: stretches(said, window) for replica, said in run.said.items()}

    def draw(self) -> None:
        """Draw all panels."""
        behind = len(self.parts)
        self._phases()
        self._violations()
        self._commits()
        self._csns()
        self._strips()
        hover = len(self.parts)
        self._faults()
        self._latencies("write latency", lambda one: one.writing)
        self._latencies("read latency", lambda one: one.reading)
        self.parts[hover:hover] = list(self._hovers())
        self.parts[behind:behind] = self._grid()
        self.y += 4

    def x(self, ns: int) -> float:
        """Return where a moment is, kept within the window."""
        inside = min(max(ns, self.window.begin_ns), self.window.end_ns) - self.window.begin_ns
        width = WIDTH - _LEFT - _RIGHT
        return round(_LEFT + width * inside / (self.window.end_ns - self.window.begin_ns), 1)

    def _label(self, text: str, y: float, class_: str = "label") -> None:
        self.parts.append(element("text", text, class_=class_, x=_LEFT - 8, y=y, text_anchor="end"))

    def _grid(self) -> Iterable[ET.Element]:
        self.y += 14
        for ns in self.window.ticks(self.run.begin_ns):
            x = self.x(ns)
            yield element("line", class_="grid", x1=x, x2=x, y1=4.0, y2=self.y - 12)
            text = self.run.clock(ns).removesuffix(".000")
            yield element("text", text, class_="tick", x=x, y=self.y, text_anchor="middle")
        for x in sorted({self.x(ns) for ns, _ in self.moments}):
            yield element("line", class_="moment", x1=x, x2=x, y1=4.0, y2=self.y - 12)

    def _phases(self) -> None:
        shown = [mark for mark in self.run.phases if self.window.begin_ns <= mark.ns <= self.window.end_ns]
        for number, mark in enumerate(shown):
            x = self.x(mark.ns)
            room = self.x(shown[number + 1].ns) - x if number + 1 < len(shown) else WIDTH - x
            self.parts.append(element("line", class_="phase", x1=x, x2=x, y1=self.y, y2=self.y + 14))
            if room > _LETTER * len(mark.text) + 6:
                self.parts.append(element("text", mark.text, class_="phasename", x=x + 4, y=self.y + 11.0))
        if shown:
            self._label("phase", self.y + 11)
            self.y += 18

    def _violations(self) -> None:
        window = self.window
        found_at = [
            (ns, found)
            for found in self.run.findings
            if window.begin_ns
            <= (ns := found.ns if found.about_ns is None else found.about_ns)
            <= window.end_ns
        ]
        self.moments = sorted(found_at, key=lambda pair: pair[0])
        if not self.moments:
            return
        self._label("violations", self.y + 14)
        free = taken = 0.0
        for ns, found in self.moments:
            x, y = self.x(ns), self.y + 10
            if x < taken:
                continue  # thousands of them are as many as can be seen
            taken = x + _NEAREST
            title = element("title", f"Violation {found.number}: {found.claim}, found by {found.check}")
            marker = [title, element("path", class_="violation", d=f"M{x} {y - 7}l7 7l-7 7l-7-7z")]
            text = str(found.number)
            if x >= free:
                side, anchor = (-9, "end") if x > WIDTH - 40 else (9, "start")
                marker.append(element("text", text, class_="number", x=x + side, y=y + 4, text_anchor=anchor))
                free = x + 14 + _LETTER * len(text)
            self.parts.append(self._to(f"#violation-{found.number}", marker))
        self.y += _TRACK + 2

    def _commits(self) -> None:
        largest = max(
            (one.per_second(one.acknowledged + one.refused + one.unknown) for one in self.bins), default=0.0
        )
        top = _round_up(largest)
        self._axis("commits per second", [(0.0, "0"), (0.5, f"{top / 2:g}"), (1.0, f"{top:g}")])
        bottom = self.y + _PANEL
        for class_, below, count in (
            ("ok", lambda _: 0, lambda one: one.acknowledged),
            ("refused", lambda one: one.acknowledged, lambda one: one.refused),
            ("unknown", lambda one: one.acknowledged + one.refused, lambda one: one.unknown),
        ):
            self._bars(class_, bottom, _PANEL / top, below, count)
        self._gap(bottom)
        self.y = bottom + _GAP

    def _bars(
        self,
        class_: str,
        bottom: float,
        scale: float,
        below: Callable[[Bin], int],
        count: Callable[[Bin], int],
    ) -> None:
        pieces = []
        for one in self.bins:
            if not count(one):
                continue
            left, right = self.x(one.begin_ns), self.x(one.end_ns)
            foot = bottom - one.per_second(below(one)) * scale
            # A single refused call among many commits must still be seen.
            height = max(one.per_second(count(one)) * scale, 1.5)
            pieces.append(f"M{left:g} {foot:.1f}h{right - left:.1f}v{-height:.1f}H{left:g}z")
        if pieces:
            self.parts.append(element("path", class_=class_, d="".join(pieces)))

    def _gap(self, bottom: float) -> None:
        gap = longest_gap(self.run)
        if gap is None or gap[1] <= self.window.begin_ns or gap[0] >= self.window.end_ns:
            return
        left, right = self.x(gap[0]), self.x(gap[1])
        text = f"{(gap[1] - gap[0]) / 1e9:.2f} s without a commit"
        title = element("title", f"{text}: from {self.run.clock(gap[0])} to {self.run.clock(gap[1])}")
        width = max(right - left, 1.5)
        self.parts.append(
            element("rect", title, class_="gap", x=left, y=bottom - _PANEL, width=width, height=_PANEL)
        )
        ends_left = right + 6 + _LETTER * len(text) > WIDTH
        x, anchor = (left - 4, "end") if ends_left else (right + 4, "start")
        self.parts.append(
            element("text", text, class_="number halo", x=x, y=bottom - _PANEL + 10, text_anchor=anchor)
        )

    def _axis(self, title: str, marks: Sequence[tuple[float, str]]) -> None:
        """Draw the frame of a panel; a mark has its height as a share of the panel's."""
        bottom = self.y + _PANEL
        self.parts.append(element("text", title, class_="label", x=4, y=self.y + _PANEL / 2 + 4))
        for share, text in marks:
            y = bottom - share * _PANEL
            self.parts.append(element("line", class_="grid", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y))
            self.parts.append(element("text", text, class_="tick", x=_LEFT - 8, y=y + 4, text_anchor="end"))

    def _csns(self) -> None:
        inside = {
            replica: [one for one in said if self.window.begin_ns <= one.ns <= self.window.end_ns]
            for replica, said in self.run.said.items()
        }
        served = [one.csn for said in inside.values() for one in said if one.csn is not None and one.serving]
        if not served:
            return
        scale = CsnScale(served)
        self._axis("snapshot CSN", [(0.0, csn_text(min(served))), (1.0, csn_text(max(served)))])
        bottom = self.y + _PANEL
        for number, (replica, said) in enumerate(inside.items()):
            pieces = []
            for piece in paths(said, self.window):
                points = [
                    f"{self.x(ns):g} {bottom - _PANEL * scale(csn) / max(scale.length, 1):.1f}"
                    for ns, csn in piece
                ]
                pieces.append("M" + "L".join(points if len(points) > 1 else points * 2))
            title = element("title", f"snapshot CSN of {replica}")
            if pieces:
                self.parts.append(element("path", title, class_=f"csn r{number % 7}", d="".join(pieces)))
        self.y = bottom + _GAP

    def _strips(self) -> None:
        if any(self.states.values()):
            self.parts.append(element("text", "state of replicas", class_="label", x=4, y=self.y + _STRIP))
        for number, (replica, found) in enumerate(self.states.items()):
            if not found:  # it is no member then
                continue
            self._label(replica, self.y + _STRIP, f"label t{number % 7}")
            pieces = [
                f"M{left:g} {self.y + 1:g}H{right:g}v{_STRIP - 2}H{left:g}z"
                for left, right in (
                    (self.x(one.begin_ns), self.x(one.end_ns)) for one in found if one.serving
                )
            ]
            if pieces:
                self.parts.append(element("path", class_=f"r{number % 7} strip", d="".join(pieces)))
            self.parts += [self._away(replica, one) for one in found if not one.serving]
            self.y += _STRIP + 4
        if any(self.states.values()):
            self.y += _GAP / 2

    def _away(self, replica: str, one: Stretch) -> ET.Element:
        said = one.state or "no answer"
        text = f"{replica}: {said} from {self.run.clock(one.begin_ns)} to {self.run.clock(one.end_ns)}"
        return element(
            "rect",
            element("title", text),
            class_="noanswer" if one.state is None else "notserving",
            x=self.x(one.begin_ns),
            y=self.y + 1,
            width=max(self.x(one.end_ns) - self.x(one.begin_ns), 1.0),
            height=_STRIP - 2,
        )

    def _faults(self) -> None:
        run, window = self.run, self.window
        shown = [
            one for one in run.faults if one.begin_ns <= window.end_ns and run.well_ns(one) >= window.begin_ns
        ]
        for kind, several in lanes(shown, run).items():
            self._label(kind, self.y + 11)
            for lane in several:
                line = self.y + _LANE - 1
                self.parts.append(
                    element("line", class_="grid", x1=_LEFT, x2=WIDTH - _RIGHT, y1=line, y2=line)
                )
                for number, fault in enumerate(lane):
                    following = self.x(lane[number + 1].begin_ns) if number + 1 < len(lane) else WIDTH
                    self.parts.append(self._band(fault, following))
                self.y += _LANE
        if shown:
            self.y += _GAP

    def _band(self, fault: Band, following: float) -> ET.Element:
        run = self.run
        end_ns = run.healed_ns(fault)
        left, middle, right = self.x(fault.begin_ns), self.x(end_ns), self.x(run.well_ns(fault))
        proof = fault.proof or "no proof of effect"
        parts = [
            element(
                "title",
                f"Fault {fault.fault}: {fault.kind} of {', '.join(fault.targets) or 'no target'}, "
                f"{run.clock(fault.begin_ns)} to {run.clock(end_ns)}; {proof}",
            ),
            element(
                "rect",
                class_="band" if fault.proof else "band unproven",
                x=left,
                y=self.y + 1,
                width=max(middle - left, 2.0),
                height=_LANE - 4,
            ),
        ]
        if right > middle:
            parts.append(
                element(
                    "rect", class_="tail", x=middle, y=self.y + 4, width=right - middle, height=_LANE - 10
                )
            )
        text = str(fault.fault)
        width = _LETTER * len(text) + 3
        if middle - left >= width:
            parts.append(element("text", text, class_="inband", x=left + 2, y=self.y + 11))
        elif following - right >= width + 2:
            parts.append(element("text", text, class_="number", x=max(right, left + 2) + 2, y=self.y + 11))
        return self._to(f"#fault-{fault.fault}", parts)

    def _latencies(self, title: str, chosen: Callable[[Bin], Spread | None]) -> None:
        found = [(one, spread) for one in self.bins if (spread := chosen(one)) is not None]
        if not found:
            return
        low = math.floor(math.log10(max(min(spread.p50 for _, spread in found), 1e-4)))
        high = max(math.ceil(math.log10(max(*(spread.largest for _, spread in found), 0.0001))), low + 1)
        self._axis(
            title,
            [((decade - low) / (high - low), _seconds(10.0**decade)) for decade in range(low, high + 1)],
        )
        bottom = self.y + _PANEL

        def height(value: float) -> str:
            share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
            return f"{bottom - share * _PANEL:.1f}"

        points: dict[str, list[str]] = {"p50": [], "p99": [], "largest": []}
        before: Bin | None = None
        for one, spread in found:
            x = (self.x(one.begin_ns) + self.x(one.end_ns)) / 2
            joint = "L" if before is not None and before.end_ns == one.begin_ns else "M"
            # A piece of one bin is drawn as a dot: a line of no length with round ends.
            again = "h0" if joint == "M" else ""
            points["p50"].append(f"{joint}{x:.1f} {height(spread.p50)}{again}")
            points["p99"].append(f"{joint}{x:.1f} {height(spread.p99)}{again}")
            points["largest"].append(f"M{x:.1f} {height(spread.largest)}h0")
            before = one
        for class_ in ("largest", "p99", "p50"):
            self.parts.append(element("path", class_=class_, d="".join(points[class_])))
        self.y = bottom + _GAP

    def _hovers(self) -> Iterable[ET.Element]:
        """Yield for each bin an area without colour that tells its figures."""
        for one in self.bins:
            if not (one.acknowledged or one.refused or one.unknown or one.reads):
                continue
            left = self.x(one.begin_ns)
            text = (
                f"{self.run.clock(one.begin_ns)}: {one.acknowledged} commits, {one.refused} refused, "
                f"{one.unknown} unknown, {one.reads} reads"
            )
            for name, found in (("writes", one.writing), ("reads", one.reading)):
                if found is not None:
                    figures = ", ".join(_seconds(value) for value in (found.p50, found.p99, found.largest))
                    text += f"\n{name} p50, p99, max: {figures}"
            yield element(
                "rect",
                element("title", text),
                class_="hover",
                x=left,
                y=4,
                width=self.x(one.end_ns) - left,
                height=round(self.y - 4),
            )

    def _to(self, anchor: str, parts: list[ET.Element]) -> ET.Element:
        return element("a", parts, href=anchor) if self.linked else element("g", parts)


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 ... that is not smaller."""
    if value <= 1:
        return 1.0
    decade = 10.0 ** math.floor(math.log10(value))
    return float(next(step * decade for step in (1, 2, 5, 10) if step * decade >= value))


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"
