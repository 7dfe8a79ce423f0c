"""Tests that need a container engine: skipped without an engine, failed in CI, else run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.containers import engine as commands
from tests.support.clusters import engine

CONFTEST = """
from tests.conftest import pytest_collection_modifyitems, pytest_runtest_setup, pytest_terminal_summary
"""
TESTS = """
import pytest

@pytest.mark.docker
def test_in_a_container(): pass

def test_without(): pass
"""


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    """Clear the remembered answer before and after each test."""
    engine.answers.cache_clear()
    yield
    engine.answers.cache_clear()


def fake_program(path: Path, script: str) -> None:
    """Make a program from a script of the shell."""
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "expected"), [("exit 0", True), ("exit 1", False), ("exec sleep 60", False)]
)
def test_an_engine_answers_when_its_client_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: bool
) -> None:
    """An engine answers when its client says so in time."""
    if "sleep" in script:
        monkeypatch.setattr(commands, "TIMEOUT_S", 0.5)
    fake_program(tmp_path / "docker", script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert engine.answers() is expected


@pytest.mark.parametrize("own_program", [True, False])
def test_an_engine_without_compose_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_program: bool
) -> None:
    """Compose is the engine's plugin or a program of its own; without both no test in containers can run."""
    fake_program(tmp_path / "docker", '[ "$1" != compose ]')
    if own_program:
        fake_program(tmp_path / "docker-compose", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert engine.answers() is own_program


def test_no_client_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no `docker` at all, no engine answers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not engine.answers()


@pytest.mark.parametrize(
    ("answers", "ci", "outcomes", "line"),
    [
        (True, "", {"passed": 2}, ""),
        (True, "true", {"passed": 2}, ""),
        (
            False,
            "",
            {"passed": 1, "deselected": 1},
            "left out: 1 docker test(s): no container engine with compose answers",
        ),
        (
            False,
            "true",
            {"passed": 1, "errors": 1},
            "*CI=true, but no container engine with compose answers*",
        ),
    ],
)
def test_marked_tests_need_an_engine_that_answers(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    answers: bool,
    ci: str,
    outcomes: dict[str, int],
    line: str,
) -> None:
    """Marked tests run where an engine answers; elsewhere they are left out with a line, or fail in CI."""
    monkeypatch.setattr(engine, "answers", lambda: answers)
    monkeypatch.setenv("CI", ci)
    pytester.makeini(
        "[pytest]\nmarkers = docker: needs an engine\nasyncio_default_fixture_loop_scope = function\n"
    )
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-q")
    result.assert_outcomes(**outcomes)
    if line:
        result.stdout.fnmatch_lines([line])
    assert ("left out" in result.stdout.str()) == (not answers and not ci)
