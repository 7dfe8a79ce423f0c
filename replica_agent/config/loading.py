"""Reads the settings of an agent: flags first, then the environment, then the file of ``--config``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import CliSettingsSource, SettingsError

from tidelock.errors import ConfigError
from tidelock.replica_agent.config.settings import AgentSettings


def load(argv: Sequence[str]) -> AgentSettings:
    """Read the settings from flags (``--data-dir D ...``), environment and the file of ``--config``.

    Raises:
        ConfigError: Naming every setting that is missing, unknown or wrong.
        SystemExit: After ``--help``.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path, default=None)
    known, rest = first.parse_known_args(argv)
    if known.config is not None and not known.config.is_file():
        msg = f"the file of --config, {known.config}, does not exist"
        raise ConfigError(msg)
    token = AgentSettings.config_file.set(known.config)
    try:
        return AgentSettings(_cli_settings_source=flags()(args=list(rest)))
    except (ValidationError, SettingsError) as error:
        raise ConfigError(_explain(error)) from error
    finally:
        AgentSettings.config_file.reset(token)


@functools.cache
def flags() -> CliSettingsSource[AgentSettings]:
    """Return the parser of the flags: one for each setting.

    To make it takes about as long as the rest of :func:`load`. So a process does that once.
    """
    return CliSettingsSource(
        AgentSettings,
        cli_prog_name="tidelock agent",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
    )


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{error}; `tidelock agent --help` lists the settings"
    lines = []
    for item in error.errors(include_url=False):
        name = ".".join(str(part) for part in item["loc"])
        said = str(item["msg"]).removeprefix("Value error, ")
        lines.append(f"{name}: {said}" if name else said)
    return "; ".join(lines) + "; `tidelock agent --help` lists the settings"
