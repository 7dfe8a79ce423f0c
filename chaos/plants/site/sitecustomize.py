"""Plants the bug that the environment names, if this process is an agent (`chaos.plants`)."""

from __future__ import annotations

import os
import sys

_AGENTS = {"tidelock.testing.agent", "tidelock.replica_agent.main"}

if "TIDELOCK_CHAOS_PLANT" in os.environ and _AGENTS & {*sys.orig_argv}:
    from tidelock.replica_agent.config import lean_start

    lean_start.leave_out_packages()  # as the agent's own process begins
    lean_start.import_aiohttp()

    from chaos import plants

    plants.put(os.environ["TIDELOCK_CHAOS_PLANT"])
