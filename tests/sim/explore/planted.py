"""Planted bugs: each replaces a piece of the product for one exploration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tests.sim.explore.replay import Replays
from tests.sim.explore.search import Model


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug.

    Attributes:
        name: What it leaves out.
        breaks: The invariants, any of which the exploration may find broken first.
        sound: The smallest scenario in which it shows, with the product as it is.
        classes: What that scenario is given instead of the product's classes.
        planted: Replaces functions of the product while this is entered.
        large: That scenario takes more than ten seconds without the bug, which ends it early.
    """

    name: str
    breaks: frozenset[str]
    sound: Callable[..., Model]
    classes: Mapping[str, Any] = field(default_factory=dict)
    planted: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    large: bool = False

    def model(self, replays: Replays) -> Model:
        """The scenario with the classes replaced."""
        return self.sound(replays, **self.classes)
