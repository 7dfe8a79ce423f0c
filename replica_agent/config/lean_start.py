"""Keeps out of a process of an agent what it never uses, so that it starts sooner and is smaller.

Libraries import others where these are installed: pyarrow and DuckDB import numpy and pandas, to convert
their objects, and structlog imports rich, for colours. Those are there for clients and for the command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGES = frozenset({"numpy", "pandas", "rich"})
#: OpenSSL reads the names of the system's certificates from here.
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class _Without(MetaPathFinder):
    """Answers for the packages: they are not installed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface
        target: ModuleType | None = None,  # noqa: ARG002 - the interface
    ) -> ModuleSpec | None:
        if fullname in _PACKAGES:
            raise ModuleNotFoundError(f"a process of an agent has no {fullname}", name=fullname)
        return None


def leave_out_packages() -> None:
    """Let each later import of them fail in this process, as where they are not installed."""
    sys.meta_path.insert(0, _Without())


def import_aiohttp() -> None:
    """Import aiohttp without the certificates of the system.

    It makes a TLS context when it is imported, and to load all certificates into that takes longer than the
    rest of it. No process of an agent uses this context: they speak HTTP without TLS to each other.
    """
    before = {name: os.environ.get(name) for name in _CERTIFICATES}
    os.environ.update(dict.fromkeys(_CERTIFICATES, os.devnull))
    try:
        import aiohttp  # noqa: F401, PLC0415
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
