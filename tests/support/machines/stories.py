"""Stories: scripts of the state machines as text files, in ``tests/testdata/<machine>/*.txt``.

A story is a sequence of blocks. A block is a command, a line ``----``, and what followed from the command,
up to an empty line. Lines that begin with ``#`` tell the reader what happens and why; the first one is the
title. tests/testdata/README.md has the commands of each machine.

A test follows every story and compares what the machine says with what the file says. With
``pytest --rewrite-scripts`` it writes the file again instead: review the difference as you would review code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Where the stories are.
TESTDATA: Final = Path(__file__).parents[2] / "testdata"

_RULE: Final = "----"

#: Takes the words of a command; returns the lines that followed.
Teller = Callable[[list[str]], list[str]]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a story: comment lines and empty lines, or a command and its output."""

    text: str
    said: tuple[str, ...] | None = None

    def __str__(self) -> str:
        if self.said is None:
            return self.text
        return "\n".join([self.text, _RULE, *self.said, ""])


def parse(text: str) -> Iterator[Block]:
    """Read the blocks of a story.

    Raises:
        ValueError: A command has no line ``----`` behind it.
    """
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.startswith("#"):
            yield Block(line)
            continue
        if next(lines, "") != _RULE:
            msg = f"the command {line!r} is not followed by a line {_RULE!r}"
            raise ValueError(msg)
        said: list[str] = []
        for answer in lines:
            if not answer.strip():
                break
            said.append(answer)
        yield Block(line, tuple(said))


def tell(text: str, teller: Teller) -> str:
    """Return the story as the machine tells it."""
    blocks = []
    for block in parse(text):
        if block.said is None:
            blocks.append(block)
        else:
            blocks.append(Block(block.text, tuple(teller(block.text.split()))))
    return "\n".join(map(str, blocks)).rstrip("\n") + "\n"


def options_of(words: list[str]) -> dict[str, str]:
    """Return the arguments of the form ``name=value``."""
    return dict(word.split("=", 1) for word in words if "=" in word)
