"""Signed texts that travel inside of URLs: ``tl1.<fields>.<mac>``, base64url without padding. Pure.

One is a single segment of a path that no shell, glob or URL takes for something else. What it is for stands
in the context that its signature covers, so none can be taken for one of another kind.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import Any

from tidelock.errors import TokenForgedError
from tidelock.token_text import PREFIX

_FORM = re.compile(rf"{PREFIX}\.([\w-]+)\.([\w-]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Signed:
    """A text that was taken apart; who has signed it is still open.

    Attributes:
        fields: What it says, if it is to be believed.
        payload: The same as it stands.
        mac: What is said to be its signature.
    """

    fields: dict[str, Any]
    payload: str
    mac: bytes

    def require(self, key: bytes, context: bytes) -> None:
        """Raise TokenForgedError unless it was signed with this key, in this context."""
        if not hmac.compare_digest(self.mac, _mac(key, context, self.payload)):
            raise forged()


def sign(key: bytes, context: bytes, fields: dict[str, Any]) -> str:
    """Return the text that says this."""
    payload = _encode(json.dumps(fields, separators=(",", ":"), sort_keys=True).encode())
    return f"{PREFIX}.{payload}.{_encode(_mac(key, context, payload))}"


def read(text: str) -> Signed:
    """Take a text apart; TokenForgedError if nobody here makes such ones."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise forged()
    try:
        fields = json.loads(_decode(form[1]))
    except (ValueError, RecursionError) as error:
        raise forged() from error
    if not isinstance(fields, dict):
        raise forged()
    return Signed(fields, form[1], _decode(form[2]))


def forged() -> TokenForgedError:
    """Return what is said of a text that this cluster has not made."""
    return TokenForgedError("this is no token that this cluster has made; take the path from tx.path()")


def _mac(key: bytes, context: bytes, payload: str) -> bytes:
    return hmac.digest(key, context + payload.encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise forged() from error
    if _encode(data) != text:  # what it says has one form
        raise forged()
    return data
