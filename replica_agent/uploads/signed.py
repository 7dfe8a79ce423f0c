"""Signed texts that travel inside of URLs: ``tl1.<fields>.<mac>``, base64url without padding. Pure.

A signed text is a single segment of a path, and no shell, glob or URL gives its characters another meaning.
Its purpose is part of the context that its signature covers, so a text of one kind is never accepted as
another kind.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from typing import Any

import msgspec

from tidelock.errors import TokenForgedError
from tidelock.token_text import PREFIX

_FORM = re.compile(rf"{PREFIX}\.([\w-]+)\.([\w-]+)", re.ASCII)


class Signed(msgspec.Struct, frozen=True):
    """A parsed text whose signature is not verified yet.

    Attributes:
        fields: Its fields, valid only if the signature is.
        payload: The fields as they are encoded in the text.
        mac: Its alleged signature.
    """

    fields: dict[str, Any]
    payload: str
    mac: bytes

    def require(self, key: bytes, context: bytes) -> None:
        """Raise TokenForgedError unless it was signed with this key, in this context."""
        if not hmac.compare_digest(self.mac, _mac(key, context, self.payload)):
            raise forged()


def sign(key: bytes, context: bytes, fields: dict[str, Any]) -> str:
    """Return the signed text of these fields."""
    payload = _encode(json.dumps(fields, separators=(",", ":"), sort_keys=True).encode())
    return f"{PREFIX}.{payload}.{_encode(_mac(key, context, payload))}"


def read(text: str) -> Signed:
    """Parse a text; TokenForgedError if no agent makes texts of this form."""
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
    """Return the error for a text that this cluster has not made."""
    return TokenForgedError("this is no token of this cluster; take the path from tx.path()")


def _mac(key: bytes, context: bytes, payload: str) -> bytes:
    return hmac.digest(key, context + payload.encode(), hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise forged() from error
    if _encode(data) != text:  # the same bytes have exactly one encoding
        raise forged()
    return data
