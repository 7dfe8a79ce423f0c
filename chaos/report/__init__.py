"""The report of a run: one file of HTML with the timeline, the story of each violation, and all figures.

    python -m chaos.report FOLDER
    python -m chaos.report FOLDER --picture docs/pictures/chaos.svg --minutes 10 15

`write` reads the journal of a run (and plan, result and logs, where they are) and writes ``report.html``
beside it, and its table of faults as Markdown; `picture` writes the timeline alone as SVG. The report needs
no other file and no network, is whole without JavaScript, and stays below a few megabytes, since lines are
drawn in bins of time. A journal that was cut is shown as far as it goes. It shows and judges nothing: what is
wrong was found by checks before.

`model` tells the run out of lines, `series` puts it into bins, `stories` finds what happened around a
violation, `summary` counts; `timeline`, `storypage` and `page` draw. All of them are pure; only `logs`
reads files.
"""

from __future__ import annotations

import json
from pathlib import Path

from chaos.reading.availability import by_kind, table
from chaos.report.elements import html, svg
from chaos.report.logs import lines_about
from chaos.report.model import Line, Run, parsed, run_of
from chaos.report.page import page, told_tids
from chaos.report.picture import picture_of
from chaos.report.summary import availability

_HERE = Path(__file__).parent


def write(folder: Path) -> Path:
    """Write the report of the run in a folder, and its table of faults; return the path of the report.

    Raises:
        OSError: The journal cannot be read, or the report not be written.
    """
    run = _told(folder)
    served = availability(run)
    made = page(
        run,
        served,
        logged=lines_about(folder / "logs", told_tids(run)),
        styles=_beside("page.css") + _beside("timeline.css"),
        script=_beside("page.js"),
    )
    noticed = table(by_kind(served.faults), served.undisturbed_per_s)
    (folder / "availability.md").write_text(noticed + "\n", encoding="utf-8", errors="replace")
    target = folder / "report.html"
    target.write_text(html(made), encoding="utf-8")
    return target


def picture(folder: Path, target: Path, *, minutes: tuple[float, float] | None = None) -> Path:
    """Write the timeline of the run in a folder as one row of SVG; return its path.

    Args:
        folder: The folder of the run.
        target: The file to be written.
        minutes: Only this part, in minutes since the begin; None = the whole run.

    Raises:
        OSError: As `write`.
    """
    drawn = picture_of(_told(folder), minutes=minutes, styles=_beside("timeline.css"))
    target.write_text(svg(drawn), encoding="utf-8")
    return target


def _told(folder: Path) -> Run:
    with (folder / "journal.jsonl").open(encoding="utf-8", errors="replace") as texts:
        return run_of(parsed(texts), _facts(folder / "plan.json"), _facts(folder / "result.json"))


def _facts(path: Path) -> Line:
    """Return the object of a file of JSON; an empty one if there is none, or if it was cut."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _beside(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")
