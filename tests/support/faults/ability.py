"""The abilities of a machine that a test needs: without them the test is skipped, and in CI it fails."""

from __future__ import annotations

import os

import pytest


def require(lack: str) -> None:
    """Skip a test for a missing ability ("" = none); in CI fail, so that no run silently tests less."""
    if is_lacking(lack):
        pytest.skip(lack)


def is_lacking(lack: str) -> bool:
    """Return whether a part of a test is left out for a missing ability ("" = none); in CI fail."""
    if lack and os.environ.get("CI") == "true":
        pytest.fail(f"CI=true, but {lack}", pytrace=False)
    return bool(lack)
