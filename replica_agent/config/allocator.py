"""Has the C library give back what large inserts have freed.

glibc maps a large block by itself, and unmaps it when it is freed. But whenever one is freed, it takes blocks
of that size from its heaps from then on (M_MMAP_THRESHOLD in mallopt(3)), where small ones that live on
between them keep them resident: after a load of TPC-H SF 1 an agent kept 400 MB for good, with the threshold
fixed 160 MB, and its peak fell from 510 to 400 MB.
"""

from __future__ import annotations

import ctypes
from typing import Final

#: Of malloc.h.
_M_MMAP_THRESHOLD: Final = -3
#: Blocks from this size on are mapped. With 128 KiB, glibc's own first choice, each chunk of a body would
#: cost page faults.
_MAPPED_BYTES: Final = 1 << 20


def map_large_blocks() -> None:
    """Fix from which size on blocks are mapped; does nothing where the C library has no `mallopt` (musl)."""
    _call("mallopt", _M_MMAP_THRESHOLD, _MAPPED_BYTES)


def give_back() -> None:
    """Return free pages between smaller blocks to the system, too; takes some milliseconds.

    Does nothing where the C library has no `malloc_trim`.
    """
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
