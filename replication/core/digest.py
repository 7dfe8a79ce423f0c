"""Checksums of a part's byte range: one XXH3-128 over the whole, and one XXH3-64 per block of 256 KiB. Pure.

The whole checksum is sent with the part (log entry, wire, ETag) and is compared at every transfer. The block
digests stay in the catalog, separate from the bytes they protect, and are compared at every read
(docs/protocol.md#bytes).
"""

from __future__ import annotations

import xxhash

#: The input of a hash; a caller wraps anything else that is contiguous into a :class:`memoryview`.
Bytes = bytes | bytearray | memoryview

#: Bytes of one block. The last block of a range may be shorter.
BLOCK_BYTES = 256 * 1024
#: Bytes of one block digest: XXH3-64, big-endian.
BLOCK_DIGEST_BYTES = 8
#: Hexadecimal digits of a checksum: XXH3-128.
CHECKSUM_DIGITS = 32


class RangeDigest:
    """Both checksums of one range, computed while its bytes arrive in pieces of any size."""

    def __init__(self) -> None:
        self._whole = xxhash.xxh3_128()
        self._block = xxhash.xxh3_64()
        self._blocks = bytearray()
        self._length = 0

    @property
    def length(self) -> int:
        """Bytes processed so far."""
        return self._length

    def update(self, data: Bytes) -> None:
        """Process the next bytes of the range."""
        self._whole.update(data)
        view = memoryview(data).cast("B")
        position = 0
        while position < view.nbytes:
            piece = view[position : position + BLOCK_BYTES - self._length % BLOCK_BYTES]
            self._block.update(piece)
            position += piece.nbytes
            self._length += piece.nbytes
            if self._length % BLOCK_BYTES == 0:
                self._blocks += self._block.digest()
                self._block.reset()

    def checksum(self) -> str:
        """Return the XXH3-128 of the bytes processed so far, 32 hexadecimal digits."""
        return self._whole.hexdigest()

    def blocks(self) -> bytes:
        """Return the digests of the blocks so far, 8 bytes each, an unfinished last one included."""
        return bytes(self._blocks) + (self._block.digest() if self._length % BLOCK_BYTES else b"")


def checksum(data: Bytes) -> str:
    """Return the XXH3-128 of ``data``, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def block_digest(data: Bytes) -> bytes:
    """Return the digest of one block: XXH3-64, big-endian."""
    return xxhash.xxh3_64_digest(data)


def block_digests(data: Bytes) -> bytes:
    """Return the digests of all blocks of ``data``, 8 bytes each, in order."""
    view = memoryview(data).cast("B")
    return b"".join(block_digest(view[at : at + BLOCK_BYTES]) for at in range(0, view.nbytes, BLOCK_BYTES))


def blocks_of(length: int) -> int:
    """Return how many blocks a range of ``length`` bytes has."""
    return -(-length // BLOCK_BYTES)
