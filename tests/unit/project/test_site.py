"""The documentation as a site (mkdocs.yml): its navigation, its links, its page of the HTTP API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from mkdocs.config import load_config

import tidelock.aio
import tidelock.client
import tidelock.spark
from tests.support.project import openapi_markdown, pages, site
from tests.support.project.source import ROOT

#: Pages that hooks make.
MADE: Final = {site.HTTP_PAGE, *(f"{folder}/index.md" for folder in site.LISTED)}


def _pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        if isinstance(entry, str):
            yield entry
            continue
        for value in entry.values():
            yield from _pages_of(value) if isinstance(value, list) else (value,)


def test_the_navigation_leads_to_every_page_and_to_no_other() -> None:
    """A page of docs/, or one that the hooks bring in, is in the navigation exactly once."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    listed = list(_pages_of(site.expanded(config.nav or [])))
    inside = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    there = (inside - {"adr/template.md"}) | set(site.OUTSIDE.values())
    assert set(listed) - MADE == there - MADE
    assert len(listed) == len(set(listed))


def test_nothing_of_the_site_comes_from_elsewhere() -> None:
    """The theme loads no fonts from elsewhere, and no setting of the site names an address."""
    config = load_config(str(ROOT / "mkdocs.yml"))
    assert config.theme["font"] is False
    assert "://" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](docs/transactions.md#x)", "[a](transactions.md#x)"),
        ("index.md", "![a](docs/data-flow.svg)", "![a](data-flow.svg)"),
        ("index.md", "[a](docs/adr/)", "[a](adr/index.md)"),
        ("containers.md", "[a](../SECURITY.md)", "[a](security.md)"),
        ("reference/tidelock.md", "[a](../transactions.md)", "[a](../transactions.md)"),
        ("transactions.md", "[a](nowhere.md)", "[a](nowhere.md)"),
        ("transactions.md", "[tests](../tests/integration)", "tests (`tests/integration`)"),
        (
            "transactions.md",
            "[a](#heading) [b](https://example.org)",
            "[a](#heading) [b](https://example.org)",
        ),
        ("index.md", "`[a](docs/transactions.md)`", "`[a](docs/transactions.md)`"),
        ("index.md", "```\n[a](docs/transactions.md)\n```", "```\n[a](docs/transactions.md)\n```"),
    ],
)
def test_links_of_the_repository_are_led_through_the_site(page: str, text: str, expected: str) -> None:
    """A link to a page leads to it, one to another file becomes its text and path, code stays as it is."""
    known = {"transactions.md", "data-flow.svg", "adr/index.md", "security.md"}
    assert site.relinked(text, page, known) == expected


def test_an_empty_folder_has_no_place_in_the_navigation() -> None:
    """A folder without pages is left out, one with pages begins with the page that lists them."""
    [decisions] = site.expanded([{"Nothing": "nowhere/"}, {"Decisions": "adr/"}])
    assert decisions["Decisions"][:2] == ["adr/index.md", "adr/0001-symlinked-packages.md"]


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("tidelock", [f"tidelock.client.{name}" for name in tidelock.client.__all__]),
        ("aio", [f"tidelock.aio.{name}" for name in tidelock.aio.__all__]),
        ("spark", [f"tidelock.spark.{name}" for name in tidelock.spark.__all__]),
    ],
)
def test_the_reference_has_every_public_name_once(page: str, names: list[str]) -> None:
    """Each exported name of a package has its place on the page of the package."""
    lines = pages.text(f"docs/reference/{page}.md").splitlines()
    assert sorted(line.removeprefix("::: ") for line in lines if line.startswith("::: ")) == sorted(names)


DOCUMENT: Final[dict[str, Any]] = {
    "info": {"title": "x"},
    "paths": {
        "/api/v1/things/{id}": {
            "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
            "post": {
                "summary": "Make a thing.",
                "parameters": [{"name": "csn", "in": "query", "schema": {"type": ["integer", "null"]}}],
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}
                },
                "responses": {"201": {"description": "made | there"}},
            },
        }
    },
    "components": {
        "schemas": {
            "Body": {
                "description": "What a thing is.",
                "properties": {
                    "names": {"type": "array", "items": {"type": "string"}},
                    "kind": {"enum": ["a", "b"]},
                    "size": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "In bytes."},
                    "map": {"type": "object", "additionalProperties": {"type": "number"}},
                },
                "required": ["names"],
            }
        }
    },
}


@pytest.mark.parametrize(
    "line",
    [
        "### `POST /api/v1/things/{id}`",
        "| `id` | path | str |  |",
        "| `csn` | query, optional | int or null |  |",
        "| takes |  | [Body](#body) (`application/json`) |  |",
        "| answers | 201 |  | made \\| there |",
        "| `names` | list of str |  |",
        "| `kind` | `a` or `b`, optional |  |",
        "| `size` | int or null, optional | In bytes. |",
        "| `map` | map to float, optional |  |",
    ],
)
def test_a_document_of_openapi_becomes_a_page_of_tables(line: str) -> None:
    """Routes, parameters, bodies and answers each have their row, and types are told in words."""
    assert line in openapi_markdown.page(DOCUMENT).splitlines()


def test_the_page_of_the_http_api_is_made_of_the_document_that_is_there() -> None:
    """Every path of docs/openapi.json is on the page; without the document the page leads to the protocol."""
    document = ROOT / "docs/openapi.json"
    routes = json.loads(document.read_text(encoding="utf-8"))["paths"] if document.exists() else ()
    page = site.http_page()
    assert page.startswith("# HTTP API\n")
    assert all(f" {route}`" in page for route in routes)
