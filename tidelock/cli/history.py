"""The command that lists commits, as the kept log of the cluster tells them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, assert_never

import msgspec
import typer

from tidelock.cli import output
from tidelock.cli.inspecting import iso
from tidelock.cli.target import ClusterOptions, Json, on_target
from tidelock.client import Database
from tidelock.wire.log import (
    AddedPart,
    LogEntry,
    LoggedTable,
    LoggedTag,
    LoggedTagEnd,
    LoggedTransaction,
    RemovedPart,
    SkippedPart,
)

#: Factor by which a search for the last commits begins earlier, if it has found too few.
_EARLIER: Final = 4


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(rich_help_panel="Inspecting")(on_target(history))


def history(
    target: ClusterOptions,
    from_csn: Annotated[
        int | None,
        typer.Option("--from", help="First CSN to show; default: the last commits.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many commits.")] = 20,
    as_json: Json = False,
) -> None:
    """List commits: when, which transaction, its label, and what it has changed in which table.

    Merges of compaction change no row and are left out; `log` has every record.
    """
    with target.connect() as db:
        found = _last(db, limit) if from_csn is None else [*itertools.islice(_commits(db, from_csn), limit)]
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ["time", "CSN", "tid", "label", "table", "rows added", "parts removed"], [_row(one) for one in found]
    )


def _last(db: Database, limit: int) -> list[dict[str, Any]]:
    """Return the last commits; records without a commit are many where nothing happens."""
    status = db.status()
    tail, end = int(status["tail"]), int(status["end_csn"])
    span = limit
    while True:
        first = max(tail, end - span + 1)
        found = [*_commits(db, first)]
        if len(found) >= limit or first == tail:
            return found[-limit:]
        span *= _EARLIER


def _commits(db: Database, first: int) -> Iterator[dict[str, Any]]:
    """Yield the commits from a CSN on, up to the end of the log."""
    while records := db.log(first):
        for record in msgspec.convert(records, list[LogEntry]):
            yield from commits_of(record)
        first = records[-1]["csn"] + 1


def commits_of(record: LogEntry) -> list[dict[str, Any]]:
    """Return the transactions of a record that have changed rows or definitions.

    The parts of a carrier hold the rows of its riders, each of which is a transaction with its own counts.
    """
    carriers = {one.carrier for one in record.tids}
    return [
        {
            "csn": record.csn,
            "time": iso(datetime.fromtimestamp(record.time_ms / 1000, UTC)),
            "tid": one.tid,
            "home": record.home,
            "label": one.label,
            "batch": one.batch,
            "meta": one.meta,
            "tables": None if one.manifest else _changes(one),
            "manifest_entries": one.manifest and one.manifest.entries,
        }
        for one in record.tids
        if one.data_change and one.tid not in carriers
    ]


def _changes(one: LoggedTransaction) -> dict[str, dict[str, Any]]:
    """Return what a transaction has done to each table; a part is removed also if it was declared lost."""
    found: dict[str, dict[str, Any]] = {}

    def of(table: str) -> dict[str, Any]:
        return found.setdefault(table, {"rows_added": 0, "parts_removed": 0, "version": None})

    for table, count in (one.rows or {}).items():
        of(table)["rows_added"] = count
    for entry in one.entries:
        match entry:
            case AddedPart():
                of(entry.table)["rows_added"] += entry.rows
            case LoggedTable():
                of(entry.table)["version"] = entry.version
            case RemovedPart() | SkippedPart():
                of(entry.table)["parts_removed"] += 1
            case LoggedTag() | LoggedTagEnd():
                pass  # no table has changed
            case _:
                assert_never(entry)
    return found


def _row(one: dict[str, Any]) -> list[Any]:
    label = one["label"] if one["batch"] is None else f"{one['label']}, batch {one['batch']}"
    begin = [one["time"], one["csn"], one["tid"], label]
    if one["tables"] is None:
        return [*begin, f"{one['manifest_entries']:,} entries in a manifest", None, None]
    tables = one["tables"].items()
    names = [f"{name} (defined)" if done["version"] is not None else name for name, done in tables]
    counts = [[f"{done[field]:,}" for _, done in tables] for field in ("rows_added", "parts_removed")]
    return [*begin, "\n".join(names), *("\n".join(column) for column in counts)]
