"""The textual form of tokens, for modules that make tokens, read them, or keep them out of logs."""

from __future__ import annotations

import re
from typing import Final

PREFIX: Final = "tl1"
#: Regular expression of a token, for Python and Java. It accepts any character before the token, since that
#: is a letter in a percent-encoded path.
PATTERN: Final = rf"{PREFIX}\.[\w-]+\.[\w-]+"
#: The compiled expression, which finds tokens in any text.
SIGNED: Final = re.compile(PATTERN, re.ASCII)
#: The replacement of a token in logs.
REDACTED: Final = f"{PREFIX}.***"


def redact(text: str) -> str:
    """Return the text with every token replaced by `REDACTED`."""
    return SIGNED.sub(REDACTED, text) if f"{PREFIX}." in text else text
