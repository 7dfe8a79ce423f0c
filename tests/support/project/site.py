"""Hooks of mkdocs.yml: pages from outside docs/, folders in the navigation, the page of the HTTP API.

Pages have links that work on GitHub. A link to a page of the site gets the path in the site. A link to a file
that is no page (a test, an example) becomes its text and the path in brackets. A link to a missing file stays
as it is, so that mkdocs reports it.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.support.project import openapi_markdown

ROOT: Final = Path(__file__).resolve().parents[3]
#: Pages outside docs/: path in the repository, and in the site.
OUTSIDE: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "docker/README.md": "containers.md",
    "examples/README.md": "examples.md",
}
_INSIDE: Final = {site: path for path, site in OUTSIDE.items()}
#: The page that this module makes from docs/openapi.json.
HTTP_PAGE: Final = "reference/http.md"
#: Folders whose README or index lists their pages.
LISTED: Final = ("adr", "design")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the navigation by its pages."""
    config.nav = expanded(config.nav or [])
    return config


def expanded(nav: list[Any]) -> list[Any]:
    """Return the navigation with `Title: folder/` as a list of the pages there, without empty folders."""
    found: list[Any] = []
    for entry in nav:
        [(title, value)] = entry.items()
        if isinstance(value, list):
            found.append({title: expanded(value)})
        elif not value.endswith("/"):
            found.append(entry)
        elif pages := pages_of(value.removesuffix("/")):
            found.append({title: [listing_of(value.removesuffix("/")), *pages]})
    return found


def pages_of(folder: str) -> list[str]:
    """Return the pages of a folder of docs/ in order, by their paths in the site, without its own listing."""
    found = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    left_out = ("template.md", "README.md", "index.md")
    return [f"{folder}/{name}" for name in found if name not in left_out]


def listing_of(folder: str) -> str:
    """Return the page of a folder: its README or index; without one, an index is made."""
    own = [name for name in ("README.md", "index.md") if (ROOT / "docs" / folder / name).exists()]
    return f"{folder}/{own[0] if own else 'index.md'}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, the pages that list folders, and the page of the HTTP API."""
    made = {site: (ROOT / path).read_text(encoding="utf-8") for path, site in OUTSIDE.items()}
    made[HTTP_PAGE] = http_page()
    for folder in LISTED:
        listing = listing_of(folder)
        if pages_of(folder) and not (ROOT / "docs" / listing).exists():
            made[listing] = _listing(folder)
    for site, content in made.items():
        files.append(File.generated(config, site, content=content))
    return files


def http_page() -> str:
    """Return the page of the HTTP API, from docs/openapi.json if that exists."""
    document = ROOT / "docs/openapi.json"
    if not document.exists():
        return "# HTTP API\n\n[The protocol](../protocol.md) has all routes and bodies.\n"
    return openapi_markdown.page(json.loads(document.read_text(encoding="utf-8")))


def _listing(folder: str) -> str:
    lines = [f"# {'Decisions' if folder == 'adr' else folder.capitalize()}", ""]
    for path in pages_of(folder):
        title = (ROOT / "docs" / path).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({posixpath.basename(path)})")
    return "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a page right in the site."""
    del config
    return relinked(markdown, page.file.src_uri, {file.src_uri for file in files})


def relinked(markdown: str, site_path: str, known: set[str]) -> str:
    """Return a page with links that are right in the site.

    Args:
        markdown: The page, with links that are right in the repository.
        site_path: The path of the page in the site.
        known: The paths of all files of the site.
    """
    source = _INSIDE.get(site_path, f"docs/{site_path}")

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found["text"], found["path"], found["anchor"] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        site = OUTSIDE.get(path, path.removeprefix("docs/"))
        if site in LISTED:
            site = listing_of(site)
        if site in known:
            way = posixpath.relpath(site, posixpath.dirname(site_path) or ".")
            return f"[{text}]({way}{anchor})"
        return f"{text} (`{path}`)" if (ROOT / path).exists() else found[0]

    def outside_of_code(found: re.Match[str]) -> str:
        return found[0] if found["code"] else link(found)

    return _LINK.sub(outside_of_code, markdown)


#: A block or a span of code, or a relative link to a file (not to a heading of the same page).
_LINK: Final = re.compile(
    r"(?P<code>^ *```.*?^ *```|`[^`\n]*`)"
    r"|\[(?P<text>(?:[^\[\]`]|`[^`]*`)*)\]\((?![a-z]+:)(?P<path>[^()#\s]+)(?P<anchor>#[^()\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)
