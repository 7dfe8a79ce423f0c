"""Options of the commands that operators run on ZooKeeper itself, without an agent.

Where an agent has a setting of the same name, default and bounds of the option are those of the setting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tidelock.replica_agent.config.identity_settings import Positive
from tidelock.replica_agent.config.settings import AgentSettings


def add_setting(to: argparse.ArgumentParser, name: str, meaning: str = "") -> None:
    """Add an option that is a setting of agents; an empty meaning is that of the setting."""
    field = AgentSettings.model_fields[name]
    _add(to, name, field, field.default, meaning or str(field.description))


def add_limit(to: argparse.ArgumentParser, name: str, default: float, meaning: str) -> None:
    """Add an option that is a positive number and no setting of agents."""
    _add(to, name, FieldInfo.from_annotation(Positive), default, meaning)


def _add(to: argparse.ArgumentParser, name: str, field: FieldInfo, default: float, meaning: str) -> None:
    option = "--" + name.replace("_", "-")
    to.add_argument(option, type=_checked(field), default=default, metavar="N", help=meaning)


def _checked(field: FieldInfo) -> Callable[[str], Any]:
    """Return the check of a text against type and bounds of a field."""
    kind: Any = Annotated[field.annotation, *field.metadata]
    adapter = TypeAdapter(kind)

    def check(text: str) -> Any:
        try:
            return adapter.validate_python(text)
        except ValidationError as error:
            raise argparse.ArgumentTypeError(f"{error.errors()[0]['msg']}, found {text}") from error

    return check
