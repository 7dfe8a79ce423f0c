"""Makes the C library return the memory that large inserts have freed.

glibc maps a large block separately, and unmaps it when it is freed. But after it has freed one, it takes
blocks of that size from its heaps (M_MMAP_THRESHOLD in mallopt(3)), where small blocks that remain between
them keep them resident. After a load of TPC-H SF 1 an agent kept 400 MB permanently; with a fixed threshold
it kept 160 MB, and its peak fell from 510 to 400 MB.
"""

from __future__ import annotations

import ctypes
from typing import Final

#: From malloc.h.
_M_MMAP_THRESHOLD: Final = -3
#: Blocks from this size on are mapped. With 128 KiB, the default of glibc, each chunk of a body would cost
#: page faults.
_MAPPED_BYTES: Final = 1 << 20


def map_large_blocks() -> None:
    """Fix the size from which on blocks are mapped; no effect if the C library has no `mallopt` (musl)."""
    _call("mallopt", _M_MMAP_THRESHOLD, _MAPPED_BYTES)


def give_back() -> None:
    """Return free pages between smaller blocks to the system, too; takes some milliseconds.

    No effect if the C library has no `malloc_trim`.
    """
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
