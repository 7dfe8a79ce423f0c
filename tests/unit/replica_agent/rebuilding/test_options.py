"""The options of the rebuild: every limit can be set, checked and looked up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelock.replica_agent.config.settings import AgentSettings
from tidelock.replica_agent.rebuilding.options import parser

PAGE = Path(__file__).parents[4] / "docs/command-line.md"
NEEDED = ["--from", "a", "--from", "b", "--zk", "zk1:2181/t"]


def test_limits_are_those_of_agents_unless_they_are_given() -> None:
    """Where an agent has the setting, its default is the default."""
    given = parser().parse_args(NEEDED)
    assert given.source == [Path("a"), Path("b")]
    for name in ("copies", "epoch_limit", "session_timeout_s", "request_timeout_s", "multi_bytes_max"):
        assert getattr(given, name) == AgentSettings.model_fields[name].default
    given = parser().parse_args([*NEEDED, "--patience-s", "1.5", "--copies", "3"])
    assert (given.patience_s, given.copies) == (1.5, 3)


@pytest.mark.parametrize(
    "wrong",
    [("--patience-s", "0"), ("--silence-s", "x"), ("--epoch-limit", "9"), ("--multi-bytes-max", "1000001")],
)
def test_values_out_of_bounds_are_refused(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The bounds are those of the settings too."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*NEEDED, *wrong])
    assert ended.value.code == 2
    assert f"argument {wrong[0]}" in capsys.readouterr().err


def test_every_limit_is_on_the_page() -> None:
    """The page of the command line names each option with its default."""
    section = PAGE.read_text(encoding="utf-8").partition("## A lost ZooKeeper")[2].partition("\n## ")[0]
    for action in parser()._actions:
        if action.metavar == "N":
            assert f"| `{action.option_strings[0]}` | {action.default:,.0f} |" in section
