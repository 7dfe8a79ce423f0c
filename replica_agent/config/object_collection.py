"""When Python looks for objects that refer to each other in circles and that nothing else needs.

A full collection looks at all objects that have lived for a while. With ten thousand commits that wait, each
with a hundred objects, it holds up the event loop for half a second, and while such a crowd comes, many of
them are made. So full collections are left to quiet moments. If none comes, one is made after a hundred times
as many allocations as Python would wait for.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Final

#: Python's own thresholds for the young generations; for the third one, a hundred times its own.
_THRESHOLDS: Final = (700, 10, 1000)
#: From so many collections of the second generation on a full one is due: Python's own threshold.
_DUE: Final = 10
#: With fewer tasks of the event loop a full collection takes a few hundredths of a second.
_FEW_TASKS: Final = 300
#: How often it is looked whether one is due, in seconds.
_LOOK_S: Final = 5.0


async def collect_in_quiet_moments() -> None:
    """Make the full collections of this process while few tasks are under way; never ends by itself."""
    gc.set_threshold(*_THRESHOLDS)
    while True:
        await asyncio.sleep(_LOOK_S)
        if gc.get_count()[2] >= _DUE and len(asyncio.all_tasks()) < _FEW_TASKS:
            gc.collect()
