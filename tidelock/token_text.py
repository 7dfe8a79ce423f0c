"""The textual form of tokens, for the modules that make tokens, read them, or keep them out of logs."""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = "tl1"
#: For Python and Java. Nothing is asked of what stands before: in a percent-encoded path that is a letter.
PATTERN: Final = rf"{PREFIX}\.[\w-]+\.[\w-]+"
#: What a token looks like in any text.
SIGNED: Final = re.compile(PATTERN, re.ASCII)
#: What replaces a token in logs.
REDACTED: Final = f"{PREFIX}.***"


def redact(text: str) -> str:
    """Return the text with every token in it made unreadable."""
    return SIGNED.sub(REDACTED, text) if f"{PREFIX}." in text else text
