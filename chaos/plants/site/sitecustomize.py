"""Plants the bug that the environment names, if this process is an agent or runs its SQL (`chaos.plants`)."""

from __future__ import annotations

import os
import sys

_PROGRAMS = {"tidelock.testing.agent", "tidelock.replica_agent.main", "tidelock.replica_agent.sql.worker"}

if "TIDELOCK_CHAOS_PLANT" in os.environ and _PROGRAMS & {*sys.orig_argv}:
    from tidelock.replica_agent.config import lean_start

    lean_start.leave_out_packages()  # as these programs begin
    lean_start.import_aiohttp()

    from chaos import plants

    plants.put(os.environ["TIDELOCK_CHAOS_PLANT"])
