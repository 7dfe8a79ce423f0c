"""The shared secret from the environment or from a file: secrets that are taken, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelock import secret_file
from tidelock.errors import ConfigError


def test_the_secret_is_the_file_without_its_white_space(tmp_path: Path) -> None:
    """A file that an editor or `echo` has written ends with a new line, which no header could hold."""
    (tmp_path / "secret").write_bytes(b"  0123 abc\r\n")
    assert secret_file.read(tmp_path / "secret") == "0123 abc"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "found an empty file; write it with"),
        (b" \n", "found an empty file; write it with"),
        (b"abc\xc3\xa4", "found another byte at position 3; write it with"),
        (b"x" * 5000, "found more than 4096 bytes; write it with"),
    ],
)
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes, found: str) -> None:
    """The error says what was expected and where, what was found, and what to do."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        secret_file.read(path)
    assert caught.value.message.startswith("expected ")
    assert str(path) in caught.value.message
    assert found in caught.value.message


@pytest.mark.parametrize(
    ("name", "reason"), [("", "Is a directory"), ("missing", "No such file or directory")]
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """A container engine makes a folder where the file of a secret is missing."""
    with pytest.raises(ConfigError, match=rf"cannot be read \({reason}\); name a file that"):
        secret_file.read(tmp_path / name)


def test_the_environment_holds_it_or_names_its_file(tmp_path: Path) -> None:
    """The variable with the secret comes first; an empty one counts as not set."""
    (tmp_path / "secret").write_text("of the file\n")
    named = {"TIDELOCK_SECRET_FILE": str(tmp_path / "secret")}
    assert secret_file.of_environment({}) is None
    assert secret_file.of_environment(named) == "of the file"
    assert secret_file.of_environment({**named, "TIDELOCK_SECRET": ""}) == "of the file"
    assert secret_file.of_environment({**named, "TIDELOCK_SECRET": "given"}) == "given"
