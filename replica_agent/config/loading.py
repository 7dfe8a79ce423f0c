"""Reads the settings of an agent: flags first, then the environment, then the file of ``--config``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import SettingsError

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

    class Bound(AgentSettings):
        config_file = known.config

    try:
        return Bound(
            _cli_parse_args=list(rest),
            _cli_kebab_case=True,
            _cli_implicit_flags=True,
            _cli_exit_on_error=False,
            _cli_prog_name="tidelock agent",
        )
    except (ValidationError, SettingsError) as error:
        raise ConfigError(_explain(error)) from error


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{error}; `tidelock agent --help` lists the settings"
    lines = []
    for item in error.errors(include_url=False):
        name = ".".join(str(part) for part in item["loc"])
        said = str(item["msg"]).removeprefix("Value error, ")
        lines.append(f"{name}: {said}" if name else said)
    return "; ".join(lines) + "; `tidelock agent --help` lists the settings"
