"""What a token looks like, wherever it stands: for who makes one, reads one, or keeps one out of a text."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "tl1"
#: For Python and Java. Nothing is asked of what stands before: in a percent-encoded path that is a letter.
PATTERN: Final = rf"{PREFIX}\.[\w-]+\.[\w-]+"
