"""The shared secret of a shard, from the environment or from a file, for agents and for clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelock.errors import ConfigError

VARIABLE: Final = "TIDELOCK_SECRET"
FILE_VARIABLE: Final = "TIDELOCK_SECRET_FILE"
#: A file that is longer is not a secret: somebody has named the wrong one.
_BYTES_MAX: Final = 4096
_NEXT: Final = "write it with e.g. `openssl rand -hex 16`"


def read(path: Path) -> str:
    """Return the secret in a file, without the white space at its ends; ConfigError if there is none."""
    try:
        with path.open("rb") as file:
            found = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"expected the shared secret in the file {path}, found that it cannot be read "
            f"({error.strerror}); name a file that the user of this process may read"
        ) from error
    if len(found) > _BYTES_MAX:
        raise ConfigError(
            f"expected the shared secret in the file {path}, found more than {_BYTES_MAX} bytes; {_NEXT}"
        )
    try:
        secret = found.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"expected printable ASCII characters in the file {path}, found another byte at position "
            f"{error.start}; {_NEXT}"
        ) from error
    if not secret:
        raise ConfigError(f"expected the shared secret in the file {path}, found an empty file; {_NEXT}")
    return secret


def of_environment(environ: Mapping[str, str]) -> str | None:
    """Return the secret that `VARIABLE` holds or `FILE_VARIABLE` names; None if neither is set.

    ConfigError as `read`.
    """
    if secret := environ.get(VARIABLE):
        return secret
    file = environ.get(FILE_VARIABLE)
    return read(Path(file)) if file else None
