"""The report of a run as one page of HTML. Pure."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from chaos.reading.availability import Availability, Noticed, by_kind, load_held
from chaos.report.elements import Child, element
from chaos.report.model import Run
from chaos.report.series import longest_gap
from chaos.report.stories import stories
from chaos.report.storypage import story_section
from chaos.report.summary import doubts, ends, errors
from chaos.report.tables import Cell, moment, number, seconds, table
from chaos.report.timeline import legend, rows, sample

#: Violations with a story of their own, and rows of the table of unknown outcomes.
STORIES_MAX: Final = 40
_DOUBTS_MAX: Final = 500


def page(
    run: Run, served: Availability, *, logged: Mapping[str, Sequence[str]], styles: str, script: str
) -> ET.Element:
    """Return the page.

    Args:
        run: The run.
        served: What clients noticed of its faults.
        logged: Lines of logs by the tid in them, for the transactions of `told_tids`.
        styles: CSS of the page and of its pictures.
        script: JavaScript that the page can do without.
    """
    title = f"Chaos run, seed {run.about.get('seed', 'not recorded')}"
    body = element(
        "body",
        _head(run, title),
        _timeline(run),
        _violations(run, logged),
        _faults(run, served),
        _doubts(run),
        _errors(run),
        _checks(run),
        _notes(run),
        element("script", script),
    )
    return element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"{title}: {run.verdict}"),
            element("style", styles),
        ),
        body,
        lang="en",
    )


def told_tids(run: Run) -> set[str]:
    """Return the transactions whose stories the page tells."""
    return {tid for found in run.findings[:STORIES_MAX] for tid in found.tids}


def command(about: Mapping[str, Any]) -> str:
    """Return the command that repeats a run: the recorded one, else that of seed, minutes and kind."""
    if isinstance(about.get("command"), str):
        return str(about["command"])
    seed, minutes = about.get("seed", "?"), about.get("minutes", "?")
    minutes = int(minutes) if isinstance(minutes, float) and minutes.is_integer() else minutes
    return f"make chaos SEED={seed} MINUTES={minutes}"


def _head(run: Run, title: str) -> list[Child]:
    about, counted = run.about, ends(run)
    unsure = doubts(run)
    resolved = sum(one.answer is not None for one in unsure)
    proven = sum(fault.proof is not None for fault in run.faults)
    kinds = len({fault.kind for fault in run.faults})
    gap = longest_gap(run)
    facts = [
        ("violations", str(len(run.findings))),
        ("commits acknowledged", f"{counted['write', 'ok']:,}"),
        ("writes refused", f"{counted['write', 'fail']:,}"),
        ("outcomes unknown", f"{len(unsure):,}, {resolved:,} resolved"),
        ("reads answered", f"{counted['read', 'ok']:,}"),
        ("reads failed", f"{counted['read', 'fail'] + counted['read', 'info']:,}"),
        ("faults", f"{len(run.faults)}, {proven} proven"),
        ("kinds of faults", str(kinds)),
        ("longest time without a commit", "none" if gap is None else f"{(gap[1] - gap[0]) / 1e9:.2f} s"),
        ("length", run.clock(run.end_ns)[:-4] + " min"),
    ]
    if run.converged is not None:
        lacking = run.converged.get("lacking")
        facts.append(("converged after heal", "no" if lacking else f"{run.converged.get('seconds', '?')} s"))
    setting = [
        ("kind", about.get("kind", about.get("place"))),
        ("minutes of faults", about.get("minutes")),
        ("replicas", about.get("replicas")),
        ("copies", about.get("copies")),
        ("ZooKeeper servers", about.get("zookeepers")),
        ("workloads", about.get("workloads")),
        ("planted bug", about.get("plant")),
    ]
    versions = about.get("versions")
    if isinstance(versions, dict):
        setting += [(f"version of {name}", version) for name, version in versions.items()]
    return [
        element("h1", f"{title} ", element("span", run.verdict, class_=f"verdict {run.verdict}")),
        element("p", "Repeat it with ", element("code", command(about))),
        element(
            "nav",
            [
                element("a", text, href=f"#{anchor}")
                for anchor, text in (
                    ("timeline", "Timeline"),
                    ("violations", f"Violations ({len(run.findings)})"),
                    ("faults", f"Faults ({len(run.faults)})"),
                    ("outcomes", f"Unknown outcomes ({len(unsure)})"),
                    ("errors", "Errors"),
                    ("checks", "Checks"),
                )
            ],
        ),
        element(
            "div",
            [element("div", element("b", value), element("span", name)) for name, value in facts],
            class_="facts",
        ),
        element("p", _setting(setting), class_="quiet"),
        _lacking(run),
        None
        if not run.unread
        else element("p", f"{run.unread} lines of the journal could not be read.", class_="bad"),
    ]


def _setting(pairs: Iterable[tuple[str, Any]]) -> str:
    return "; ".join(f"{name}: {_plain(value)}" for name, value in pairs if value not in (None, [], ""))


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _lacking(run: Run) -> ET.Element | None:
    if run.converged is None or not run.converged.get("lacking"):
        return None
    return element("p", f"The cluster did not converge: {_plain(run.converged['lacking'])}", class_="bad")


def _timeline(run: Run) -> list[Child]:
    pictures = rows(run, linked=True)
    parts: list[Child] = [element("h2", "Timeline", id="timeline")]
    if run.end_ns == run.begin_ns:
        return [*parts, element("p", "The journal has no moments.")]
    samples = [
        element("span", element("svg", element("g", sample(class_), class_="row"), viewBox="0 0 20 12"), text)
        for class_, text in legend()
    ]
    parts.append(
        element(
            "p",
            "Time is in minutes and seconds since the begin of the run. A number in a band is that of the "
            "fault and leads to its line in the table; a diamond is a violation and leads to its story.",
            class_="quiet",
        )
    )
    parts.append(element("div", samples, class_="legend"))
    for one in pictures:
        heading = element("h3", one.title) if len(pictures) > 1 else None
        parts += [heading, element("div", one.picture(), class_="timeline wide")]
    return parts


def _violations(run: Run, logged: Mapping[str, Sequence[str]]) -> list[Child]:
    parts: list[Child] = [element("h2", "Violations", id="violations")]
    if not run.findings:
        return [*parts, element("p", "No check and no workload has found a broken promise.")]
    claims = Counter((found.claim, found.check) for found in run.findings)
    parts.append(
        table(
            ("invariant", "found by", "times"),
            [(claim, check, number(times)) for (claim, check), times in claims.most_common()],
        )
    )
    parts += [story_section(run, story) for story in stories(run, run.findings[:STORIES_MAX], logged)]
    rest = run.findings[STORIES_MAX:]
    if rest:
        parts.append(element("h3", f"{len(rest)} more violations, in short"))
        parts.append(
            table(
                ("", "moment", "invariant", "found by", "story"),
                [
                    (
                        element("span", str(found.number), id=f"violation-{found.number}"),
                        moment(run, found.about_ns),
                        found.claim,
                        found.check,
                        found.story[:300],
                    )
                    for found in rest[:_DOUBTS_MAX]
                ],
            )
        )
    return parts


def _faults(run: Run, served: Availability) -> list[Child]:
    parts: list[Child] = [element("h2", "Faults", id="faults")]
    if not served.faults:
        return [*parts, element("p", "No fault was injected.")]
    proven = Counter(fault.kind for fault in run.faults if fault.proof is not None)
    parts.append(element("h3", "By kind"))
    parts.append(
        table(
            (
                *("kind", "times", "proven", "writers p50 s", "writers max s", "readers p50 s"),
                *("readers max s", "until well p50 s", "until well max s", "failed calls"),
                *("commits", "load held"),
            ),
            [
                (
                    one.kind,
                    number(one.times),
                    number(proven[one.kind], bad=proven[one.kind] < one.times),
                    *map(seconds, (one.writers_p50_s, one.writers_max_s)),
                    *map(seconds, (one.readers_p50_s, one.readers_max_s)),
                    *map(seconds, (one.recovery_p50_s, one.recovery_max_s)),
                    number(one.failed),
                    number(one.commits),
                    load_held(one.commits_per_s, served.undisturbed_per_s),
                )
                for one in by_kind(served.faults)
            ],
        )
    )
    parts.append(
        element(
            "p",
            "Writers: the longest time without an acknowledged commit while a fault acted and until its "
            "targets were well; readers: the same without an answer to a read. Until well: from the end of "
            "the fault until its targets served again. Load held: commits per second while such a fault "
            "acted, beside whatever else acted, as a share of those while none did"
            + (f" ({served.undisturbed_per_s:.1f})." if served.undisturbed_per_s else "."),
            class_="quiet",
        )
    )
    parts.append(element("h3", "One by one"))
    parts.append(table(_FAULT_TITLES, [_fault_cells(run, one) for one in served.faults]))
    if run.spared:
        parts.append(element("h3", "Left out, because more was not promised to be survived"))
        parts.append(element("ul", [element("li", text) for text in run.spared]))
    return parts


_FAULT_TITLES: Final = (
    *("", "kind", "targets", "begin", "length s", "until well s", "commits", "failed calls"),
    *("writers s", "readers s", "proof of effect"),
)


def _fault_cells(run: Run, one: Noticed) -> list[Cell]:
    band = one.band
    never = band.end_ns > run.end_ns
    return [
        element("span", str(band.fault), id=f"fault-{band.fault}"),
        band.kind,
        ", ".join(band.targets),
        moment(run, band.begin_ns),
        seconds(None if never else (band.end_ns - band.begin_ns) / 1e9),
        seconds(one.recovery_s),
        number(one.commits),
        number(one.failed),
        seconds(one.writers_s),
        seconds(one.readers_s),
        band.proof or element("span", "none", class_="bad"),
    ]


def _doubts(run: Run) -> list[Child]:
    found = doubts(run)
    parts: list[Child] = [element("h2", "Unknown outcomes", id="outcomes")]
    if not found:
        return [*parts, element("p", "Every client was told the outcome of each of its transactions.")]
    answers = Counter(one.answer or "not resolved in the journal" for one in found)
    open_first = sorted(found, key=lambda one: one.answer is not None)[:_DOUBTS_MAX]
    shown = f"The first {_DOUBTS_MAX} of {len(found)}." if len(found) > _DOUBTS_MAX else None
    return [
        *parts,
        table(("resolved as", "times"), [(answer, number(times)) for answer, times in answers.most_common()]),
        element("p", shown, class_="quiet") if shown else None,
        table(
            ("moment", "workload", "client", "transaction", "error", "resolved as"),
            [
                (
                    moment(run, one.call.ns),
                    one.call.workload,
                    one.call.process,
                    one.call.tid or "",
                    one.call.error or "",
                    one.answer or element("span", "not resolved in the journal", class_="bad"),
                )
                for one in open_first
            ],
        ),
    ]


def _errors(run: Run) -> list[Child]:
    found = errors(run)
    title = element("h2", "Errors of calls", id="errors")
    if not found:
        return [title, element("p", "No call failed.")]
    ended = {"fail": "certainly not done", "info": "unknown", "ok": "done, the client asked for the outcome"}
    return [
        title,
        table(
            ("error", "call", "end", "times", "first message"),
            [
                (one.error, one.f, ended.get(one.end, one.end), number(one.times), one.example)
                for one in found
            ],
        ),
    ]


def _checks(run: Run) -> list[Child]:
    title = element("h2", "Checks", id="checks")
    found = Counter(finding.check for finding in run.findings)
    names = [*run.judged, *(name for name in sorted(found) if name not in run.judged)]
    if not names:
        return [title, element("p", "The run has not come to its checks.")]
    return [
        title,
        table(("check or workload", "result"), [(name, _result(run, name, found)) for name in names]),
    ]


def _result(run: Run, name: str, found: Counter[str]) -> Cell:
    if not found[name]:
        return "clean"
    unfinished = "" if name in run.judged else "; it has not judged to its end"
    violations = "1 violation" if found[name] == 1 else f"{found[name]} violations"
    return element("span", violations + unfinished, class_="bad")


def _notes(run: Run) -> list[Child]:
    if not run.notes:
        return []
    lines = [f"{run.clock(note.ns)}  {note.text}" for note in run.notes[:_DOUBTS_MAX]]
    return [element("h2", "Notes", id="notes"), element("pre", "\n".join(lines))]
