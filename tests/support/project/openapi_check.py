"""Compares answers of an agent with its OpenAPI document: the status, the content type, the body."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jsonschema


@dataclass(frozen=True, slots=True)
class Told:
    """An answer as it came: its status, its Content-Type (None: none), and its body."""

    status: int
    content_type: str | None
    body: bytes


@dataclass(slots=True)
class Checker:
    """Compares answers with a document, and remembers which operations it has seen succeed.

    Attributes:
        document: The OpenAPI document.
        succeeded: Methods and paths of the operations that were answered with a status below 400.
    """

    document: dict[str, Any]
    succeeded: set[tuple[str, str]] = field(default_factory=set)

    def operations(self) -> Iterator[tuple[str, str]]:
        """All methods and paths of the document."""
        for path, item in self.document["paths"].items():
            yield from ((method.upper(), path) for method in item if method != "servers")

    def differences(self, method: str, path: str, told: Told) -> list[str]:
        """Return the differences between an answer and the document; an empty list if it is as documented.

        Args:
            method: The HTTP method.
            path: The path in the document, with names in braces.
            told: The answer.
        """
        operation = self.document["paths"].get(path, {}).get(method.lower())
        if operation is None:
            return [f"{method} {path} is not in the document"]
        responses = operation["responses"]
        expected = responses.get(str(told.status)) or responses.get("default")
        if expected is None:
            return [f"{method} {path} answered {told.status}, expected one of {', '.join(responses)}"]
        if told.status < 400:
            self.succeeded.add((method, path))
        return [f"{method} {path} {told.status}: {what}" for what in self._body(expected, told)]

    def _body(self, expected: dict[str, Any], told: Told) -> Iterator[str]:
        if not (content := expected.get("content")) or "*/*" in content:
            return
        media_type = (told.content_type or "").partition(";")[0]
        if media_type not in content:
            yield f"it is {told.content_type}, expected {', '.join(content)}"
            return
        if (schema := content[media_type].get("schema")) is not None:
            validator = jsonschema.Draft202012Validator({**schema, "components": self.document["components"]})
            for error in validator.iter_errors(json.loads(told.body)):
                yield f"{error.json_path}: {error.message}"
