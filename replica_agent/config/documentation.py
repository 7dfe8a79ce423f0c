"""Writes docs/configuration.md from the settings class.

python -m tidelock.replica_agent.config.documentation
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic_core import PydanticUndefined

from tidelock.replica_agent.config.settings import AgentSettings

_HEAD = """# Configuration of an agent

Generated from `replica_agent/config/settings.py` by `python -m tidelock.replica_agent.config.documentation`;
a test keeps the two equal.

Every setting is a flag of `tidelock agent` (`--data-dir D`), an environment variable (`TIDELOCK_DATA_DIR=D`)
and a line of the TOML file named by `--config` (`data_dir = "D"`); the flag wins over the environment, the
environment over the file. Durations are in seconds, sizes in bytes. Unknown names are refused.

| setting | default | meaning |
|---|---|---|
"""


def _shown(default: Any) -> str:
    if default is PydanticUndefined:
        return "required"
    if default in ("", [], None):
        return "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def markdown() -> str:
    """Return the page."""
    rows = [
        f"| `{name}` | {_shown(field.default)} | {field.description} |"
        for name, field in AgentSettings.model_fields.items()
    ]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
