"""Settings: each one is used, those that depend on each other fit, and every bound has its effect."""

from __future__ import annotations

import ast
import asyncio
import importlib
import re
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.support.aio import until
from tests.support.project.source import ROOT, modules_of
from tests.support.rows import Sinks, settings, stream
from tidelock.errors import ConfigError, UnavailableError
from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.readers.pool import ReaderPool
from tidelock.replica_agent.storage.arrow_body import InsertBody
from tidelock.replica_agent.storage.part_writer import InsertStream
from tidelock.replica_agent.tables.schema import TableSchema
from tidelock.replica_agent.workers.process import WorkerProcess

SCHEMA = pa.schema([("k", pa.int64())])


def test_every_setting_is_looked_at() -> None:
    """A limit that nothing reads is a promise to the operator that is not kept."""
    read = {
        node.attr
        for module in modules_of("replica_agent")
        if not module.path.endswith("settings.py")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    # Read by the settings themselves: they refuse to bind an open address without the one, and take the
    # secret from the other.
    assert AgentSettings.model_fields.keys() - read == {"insecure", "secret_file"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"record_bytes_max": 790 << 10}, "multi_bytes_max"),
        ({"inline_entries_bytes_max": 400 << 10}, "record_bytes_max"),
        ({"inline_part_bytes_max": 32 << 20}, "push_bytes_max"),
        ({"lease_s": 4000}, "lease_max_s"),
        ({"snapshot_ttl_s": 90_000}, "snapshot_ttl_max_s"),
        ({"multi_bytes_max": 1 << 20}, "1000000"),
        ({"sql_engine_share": 1.0}, "less than 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, float], named: str) -> None:
    """An agent that could never commit, or whose requests ZooKeeper would drop, does not start."""
    with pytest.raises(ValueError, match=named) as refused:
        settings(**given)
    assert next(iter(given)) in str(refused.value)


async def test_a_body_waits_for_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An insert receives only as many chunks of a body from the client as the setting allows."""
    taken = 0
    begin = threading.Event()
    read = InsertBody.read

    def slow(self: InsertBody, size: int) -> bytes:
        begin.wait()
        return read(self, size)

    monkeypatch.setattr(InsertBody, "read", slow)
    rows = stream(pa.RecordBatch.from_pydict({"k": list(range(1000))}, schema=SCHEMA))

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        for at in range(0, len(rows), 100):
            taken += 1
            yield rows[at : at + 100]

    maker = Sinks().maker(TableSchema.from_request("t", SCHEMA), insert_chunks_ahead=3)

    async def insert() -> int:
        return sum([part.rows async for part in InsertStream(maker).parts(chunks())])

    inserting = asyncio.create_task(insert())
    await until(lambda: taken == 4)  # three that wait, and one in work
    for _ in range(20):
        await asyncio.sleep(0)
    assert taken == 4
    begin.set()
    assert await inserting == 1000


async def test_a_port_that_stays_taken_is_given_up(tmp_path: Path) -> None:
    """The readers of an agent that was killed may hold the port for a moment, but not longer."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        pool = ReaderPool(
            settings=settings(data_port=port, bind_retry_s=0.05),
            data_dir=tmp_path,
            callbacks=cast("Any", None),
            api="",
        )
        with pytest.raises(ConfigError, match="data_port"):
            await pool.start()


async def test_readers_that_do_not_start_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start ends with the name of the setting."""

    async def hang(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(WorkerProcess, "start", hang)
    pool = ReaderPool(
        settings=settings(worker_start_timeout_s=0.05),
        data_dir=tmp_path,
        callbacks=cast("Any", None),
        api="",
    )
    await pool.start()
    with pytest.raises(UnavailableError, match="worker_start_timeout_s"):
        await pool.ready()


async def test_readers_that_die_are_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between the starts grow no further than the setting says."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def fail(*_: object) -> None:
        raise OSError("no process")

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0)

    monkeypatch.setattr(WorkerProcess, "start", fail)
    monkeypatch.setattr(asyncio, "sleep", note)
    pool = ReaderPool(
        settings=settings(reader_workers=1, reader_restart_wait_max_s=0.5),
        data_dir=tmp_path,
        callbacks=cast("Any", None),
        api="",
    )
    await pool.start()
    while len(pauses) < 5:
        await sleep(0)
    await pool.close()
    assert pauses[:5] == [0.2, 0.4, 0.5, 0.5, 0.5]


def test_the_tables_of_bounds_are_those_of_the_code() -> None:
    """docs/protocol.md#timeouts-and-bounds has each setting with its default, and every constant."""
    text = (ROOT / "docs/protocol.md").read_text(encoding="utf-8").split("## 7. Timeouts and bounds")[1]
    rows = re.findall(r"^\| `([^`]+)` \| (\S+) \| (.+) \|$", text, re.MULTILINE)
    assert all(effect.strip(" -") for _, _, effect in rows)
    shown = {name: value for name, value, _ in rows}
    assert len(shown) == len(rows)
    constants = {name: shown.pop(name) for name in list(shown) if ":" in name}
    numbers = {
        name: str(field.default)
        for name, field in AgentSettings.model_fields.items()
        if type(field.default) in {int, float} and not name.endswith("_port")
    }
    assert shown == numbers
    for name, value in constants.items():
        module, _, attribute = name.partition(":")
        found = getattr(importlib.import_module(f"tidelock.{module}"), attribute)
        assert str(found) == value, name


def test_a_label_counts_for_thirty_days() -> None:
    """A job that runs again within a month is known to have run; the label of a stream counts for longer."""
    fields = AgentSettings.model_fields
    assert fields["label_retention_s"].default == 30 * 86_400
    assert fields["stream_label_retention_s"].default >= fields["label_retention_s"].default


def test_the_readme_says_for_how_long_a_label_counts() -> None:
    """Its table of limits has the defaults, since a job that runs again relies on them."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| History")]
    fields = AgentSettings.model_fields
    days = [fields[name].default / 86_400 for name in ("label_retention_s", "stream_label_retention_s")]
    assert f"a label counts once for {days[0]:g} days (`label_retention_s`)" in row
    assert f"of a stream for {days[1]:g} days" in row


def test_the_secret_of_a_file_is_the_secret(tmp_path: Path) -> None:
    """All that compares secrets reads one setting, however it was given."""
    (tmp_path / "secret").write_text("hush\n")
    given = settings(secret_file=tmp_path / "secret", bind="0.0.0.0")
    assert given.secret == "hush"
    assert "hush" not in repr(given)


def test_a_secret_has_one_source(tmp_path: Path) -> None:
    """Two secrets would be a puzzle, and a file without one is an error among the others."""
    (tmp_path / "secret").write_text("")
    with pytest.raises(ValueError, match="secret and secret_file are both set; set one of them"):
        settings(secret_file=tmp_path / "secret", secret="hush")
    with pytest.raises(ValueError, match=r"expected the shared secret in the file .*, found an empty file"):
        settings(secret_file=tmp_path / "secret")
