"""An agent whose wall clock a test sets: `python -m tidelock.testing.agent`, with the options of an agent."""

from __future__ import annotations

import sys

from tidelock.replica_agent.config import lean_start

if __name__ == "__main__":  # as the agent's own process begins
    lean_start.leave_out_packages()
    lean_start.import_aiohttp()

from tidelock.replica_agent.main import main
from tidelock.testing.clock import PROGRAM, replace_clock

if __name__ == "__main__":
    replace_clock()
    sys.exit(main(program=PROGRAM))
