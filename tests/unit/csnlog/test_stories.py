"""The stories of the state machines (tests/testdata) have the present output of the machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.support.machines import stories
from tests.support.machines.committer_story import CommitterStory
from tests.support.machines.copies_story import CopiesStory
from tests.support.machines.follower_story import FollowerStory
from tests.support.machines.prefix_story import PrefixStory
from tests.support.machines.resolver_story import ResolverStory

TELLERS: Final[dict[str, Callable[[], stories.Teller]]] = {
    "committer": CommitterStory,
    "copies": CopiesStory,
    "follower": FollowerStory,
    "prefix": PrefixStory,
    "resolver": ResolverStory,
}
STORIES: Final = sorted(stories.TESTDATA.glob("*/*.txt"))


@pytest.mark.scenario("S01", "S02", "S03", "S10", "S13", "S20", "S21", "S34", "S48")
@pytest.mark.parametrize("path", STORIES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_story_is_what_the_machine_says(path: Path, request: pytest.FixtureRequest) -> None:
    """Each command of a story has its output; --rewrite-scripts writes the file again, for a review."""
    text = path.read_text(encoding="utf-8")
    told = stories.tell(text, TELLERS[path.parent.name]())
    if request.config.getoption("--rewrite-scripts"):
        path.write_text(told, encoding="utf-8")
        return
    assert told == text


def test_every_machine_has_stories_with_a_title() -> None:
    """The first line of a story is its title."""
    assert {path.parent.name for path in STORIES} == set(TELLERS)
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in STORIES)


def test_a_command_without_a_rule_is_an_error() -> None:
    """The error names the command that has no rule."""
    with pytest.raises(ValueError, match="'serve all' is not followed by a line '----'"):
        list(stories.parse("# A story.\n\nserve all\n"))


def test_a_story_that_is_not_true_is_told_as_it_is() -> None:
    """Comments stay, and the output of each command is written again."""
    text = "# A story.\n\nstart\n----\nwrong\n\n# Then:\nconnect\n----\n"
    assert stories.tell(text, CommitterStory()) == (
        "# A story.\n\nstart\n----\n\n# Then:\nconnect\n----\ndraw nonce\n"
    )


def test_the_page_of_the_commands_names_all_of_them() -> None:
    """tests/testdata/README.md has every command of committer, follower and resolver."""
    page = (stories.TESTDATA / "README.md").read_text(encoding="utf-8")
    for teller in (CommitterStory, FollowerStory, ResolverStory):
        for name in (name.removeprefix("do_") for name in dir(teller) if name.startswith("do_")):
            assert f"| `{name}" in page, name
