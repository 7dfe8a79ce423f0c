"""The story of a violation as a section of the report. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Final

from chaos.report.elements import Child, element
from chaos.report.model import Call, ReplicaSaid, Run
from chaos.report.series import csn_text, missing_ns
from chaos.report.stories import Story
from chaos.report.tables import moment, seconds, table
from chaos.report.timeline import row

#: Faults in the first paragraph.
_LEAD_MAX: Final = 3
#: The time that the picture of a story shows before and after the moment, in ns.
_BEFORE_NS: Final = 20_000_000_000
_AFTER_NS: Final = 10_000_000_000
#: Few bins: a picture of seconds shows single calls otherwise.
_BINS_MAX: Final = 60
#: Stories with a picture of their own.
_PICTURES_MAX: Final = 12


def story_section(run: Run, story: Story) -> ET.Element:
    """Return the section of a violation: what was promised, and what happened around it."""
    found = story.found
    return element(
        "section",
        element("h3", f"Violation {found.number}: {found.claim}"),
        _lead(run, story),
        element("pre", found.story),
        _faults(run, story),
        _calls(run, "Calls of its transaction", story.calls) if found.tids else None,
        _picture(run, story),
        _replicas(run, story),
        _calls(run, "Other calls that failed within 3 s of the moment", story.nearby),
        _texts("Notes of the journal within 3 s", [f"{run.clock(n.ns)}  {n.text}" for n in story.notes]),
        _texts("Lines of logs", story.log),
        class_="story",
        id=f"violation-{found.number}",
    )


def _lead(run: Run, story: Story) -> ET.Element:
    found = story.found
    when = "It is about the end of the run"
    if story.moment_ns is not None:
        when = f"It happened at {run.clock(story.moment_ns)}"
    parts: list[Child] = [
        "Broken invariant: ",
        element("b", found.claim),
        ". Found by ",
        element("b", found.check),
        f" at {run.clock(found.ns)}. {when}. ",
    ]
    if found.tids:
        parts += ["Transaction: ", element("code", ", ".join(found.tids)), ". "]
    if not story.suspects:
        return element("p", parts, "No fault acted before it.")
    parts.append("Nearest faults: ")
    for number, one in enumerate(story.suspects[:_LEAD_MAX]):
        link = element("a", f"{one.fault.fault} ({one.fault.kind})", href=f"#fault-{one.fault.fault}")
        targets = ", ".join(one.fault.targets) or "no target"
        parts += [", then " if number else "", link, f" of {targets}, which {one.relation}"]
    parts.append(".")
    return element("p", parts)


def _faults(run: Run, story: Story) -> list[Child]:
    if not story.suspects:
        return []
    return [
        element("h4", "Faults at the moment, shortly before it, and later on its home"),
        table(
            ("", "kind", "targets", "from", "to", "relation to the moment", "proof of effect"),
            [
                (
                    element("a", str(one.fault.fault), href=f"#fault-{one.fault.fault}"),
                    one.fault.kind,
                    ", ".join(one.fault.targets),
                    moment(run, one.fault.begin_ns),
                    moment(run, run.healed_ns(one.fault)),
                    one.relation,
                    one.fault.proof or element("span", "none", class_="bad"),
                )
                for one in story.suspects
            ],
        ),
    ]


def _calls(run: Run, title: str, calls: Sequence[Call]) -> list[Child]:
    if not calls:
        return []
    ended = {"ok": "acknowledged", "fail": "refused", "info": "unknown"}
    return [
        element("h4", title),
        table(
            (
                "from",
                "to",
                "took s",
                "call",
                "transaction",
                "workload, client",
                "home or replica",
                "end",
                "CSN",
                "error",
            ),
            [
                (
                    moment(run, call.began_ns),
                    moment(run, call.ns),
                    seconds(call.took_s),
                    call.f,
                    call.tid or "",
                    f"{call.workload}, {call.process}",
                    call.home or call.replica or "",
                    ended.get(call.end, call.end),
                    csn_text(call.csn) if call.csn is not None else "",
                    ": ".join(part for part in (call.error, call.message) if part),
                )
                for call in calls
            ],
        ),
    ]


def _picture(run: Run, story: Story) -> ET.Element | None:
    if story.moment_ns is None or story.found.number > _PICTURES_MAX:
        return None
    begin_ns = max(run.begin_ns, story.moment_ns - _BEFORE_NS)
    end_ns = min(run.end_ns, story.moment_ns + _AFTER_NS)
    return row(
        run, begin_ns, end_ns, f"Around violation {story.found.number}", linked=True, bins_max=_BINS_MAX
    ).picture()


def _replicas(run: Run, story: Story) -> list[Child]:
    if not story.said:
        return []
    at_ns = story.moment_ns or 0
    return [
        element("h4", "Replicas at the moment"),
        table(
            ("replica", "snapshot CSN", "state", "said", "next snapshot CSN", "next state", "said"),
            [
                (replica, *_said(before, at_ns, missing_ns(run.said[replica])), *_said(after, at_ns))
                for replica, (before, after) in story.said.items()
            ],
        ),
    ]


def _said(said: ReplicaSaid | None, moment_ns: int, silent_ns: int = 0) -> tuple[str, str, str]:
    """Return CSN, state and age of an answer; with `silent_ns` an older one was followed by silence."""
    if said is None:
        return "", "", ""
    away_s = (said.ns - moment_ns) / 1e9
    when = f"{-away_s:.2f} s before" if away_s <= 0 else f"{away_s:.2f} s after"
    if said.csn is None and said.state is None:
        return "none", "no answer", when
    silent = silent_ns and moment_ns - said.ns > silent_ns
    return csn_text(said.csn), (said.state or "answers") + (", then no answer" if silent else ""), when


def _texts(title: str, lines: Sequence[str]) -> list[Child]:
    return [element("h4", title), element("pre", "\n".join(lines))] if lines else []
