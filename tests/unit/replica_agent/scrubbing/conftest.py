"""A replica with parts of every kind, for each test a copy of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.replicas.audited import AuditedReplica


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[AuditedReplica]:
    """A sound replica."""
    made = AuditedReplica(tmp_path)
    await made.fill()
    yield made
    await made.close()
