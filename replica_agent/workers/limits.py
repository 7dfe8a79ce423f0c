"""The memory limit of a worker process."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Final

#: Stacks of the threads that DuckDB and Arrow start later; they count as memory of the process.
_THREADS_BYTES: Final = 128 << 20


def limit_memory(more_bytes: int) -> None:
    """Limit this process to its present memory and ``more_bytes``; the machine ends it before others."""
    used = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")
    )
    limit = int(used.split()[1]) * 1024 + _THREADS_BYTES + more_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # not every container lets a process set this
        Path("/proc/self/oom_score_adj").write_text("1000")
