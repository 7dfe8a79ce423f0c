"""The command line `tidelock`: one module for each group of commands, `main` as the entry point."""

from __future__ import annotations

from tidelock.cli.app import main

__all__ = ["main"]
