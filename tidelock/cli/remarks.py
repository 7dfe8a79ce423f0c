"""Lines of `tidelock status` about what is not as it should be, or not as it is configured."""

from __future__ import annotations

from collections.abc import Iterator

from tidelock.cli import output
from tidelock.wire.rows import Fields

#: A replica that has applied nothing for so long holds records back, in seconds.
_STANDING_S = 5.0


def held_back(seen: Fields) -> list[str]:
    """Return a line for each replica that holds back records in ZooKeeper, from the status of an agent.

    A replica that follows is a few records behind all the time: that holds nothing back.
    """
    bounds = seen.get("strike")
    if bounds is None:
        return []
    struck = (
        f"it is struck after {bounds['timeout_s']:,.0f} s, or with more than {bounds['records']:,} records "
        f"or {output.size(bounds['bytes'])}"
    )
    return [
        f"{row['id']} holds back {row['held_records']:,} records ({output.size(row['held_bytes'])}) in "
        f"ZooKeeper: it {'applies nothing' if row['alive'] else 'is silent'} for {row['held_s']:,.0f} s; "
        + struck
        for row in seen["replicas"]
        if row.get("held_records") and row.get("held_s", 0.0) >= _STANDING_S
    ]


def remarks(status: Fields) -> list[str]:
    """Return what a replica says of itself: why it does not serve, its clone, its clock, its switches."""
    return list(_remarks(status))


def _remarks(status: Fields) -> Iterator[str]:
    replica = status["id"]
    if status.get("reason") and status["state"] != "serving":
        yield f"{replica} is {status['state']}: {status['reason']}"
    if clone := status.get("clone"):
        yield (
            f"{replica} clones: {clone['percent']:.0f} % has arrived, {output.size(clone['bytes'])} of "
            f"{output.size(clone['of_bytes'])} in {clone['parts']:,} of {clone['of_parts']:,} parts"
        )
    if (clock := status.get("clock")) and clock["off"]:
        yield (
            f"the clock of {replica} is {abs(clock['offset_s']):,.1f} s "
            f"{'ahead' if clock['offset_s'] > 0 else 'behind'}: set it right; its commits get the time of "
            "the others"
        )
    for switch in status.get("switches", []):
        name, value, configured = switch["name"], switch["value"], switch["configured"]
        if value != configured:
            yield f"{name} is {value} at {replica}; a restart restores {configured}"
