"""How far an answer runs ahead of a client that may hang up at any moment. Pure.

Hadoop's client asks for a file from an offset to its end, reads what it needs, and hangs up. All that was
read, verified and sent beyond that is wasted. How much a client has read is not known: its kernel confirms
bytes that it holds for a client who never reads them, 64 KiB of them on loopback. But what was sent beyond
these has been read. So an answer begins with few bytes under way. Once its client certainly reads, more and
more may be under way.
"""

from __future__ import annotations

from typing import Final

#: Bytes that may be under way at first. The kernel takes twice as many (socket(7)): with the client's share
#: that is less than :data:`_READS`, so a client that reads nothing gets no more.
FIRST_BYTES: Final = 16 * 1024
#: A client to which so many bytes were sent has read some of them.
_READS: Final = 128 * 1024
#: Share of the bytes sent that may be under way from then on.
_SHARE: Final = 2


def ahead(sent: int, most: int) -> int:
    """Return how many bytes, a power of two or ``most``, may be under way after ``sent`` bytes."""
    if sent < _READS:
        return min(most, FIRST_BYTES)
    return min(most, 1 << (sent // _SHARE).bit_length() - 1)


def to_read(sent: int, most: int) -> int:
    """Return how many bytes are read and verified at once after ``sent`` bytes: no more than those."""
    return min(most, sent)
