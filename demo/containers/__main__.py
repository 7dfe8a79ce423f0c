"""`python -m demo.containers [--scale-factor SF] [--seconds S] [--keep] [--json]`: the demo in containers."""

from __future__ import annotations

import sys

from demo import entry
from demo.containers.run import run


def main() -> int:
    """Run the demo; returns an exit code of `tidelock.exits`."""
    parser = entry.parser(
        "python -m demo.containers",
        "The demo in the services of docker/compose.yaml, with Spark's master and two workers.",
    )
    chosen = entry.parsed(parser)
    return entry.exit_code(
        lambda: run(chosen.scale_factor, seconds=chosen.seconds, keep=chosen.keep, json_out=chosen.json)
    )


if __name__ == "__main__":
    sys.exit(main())
