"""An OpenAPI document as a page of Markdown: routes with their parameters and answers, then the bodies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_WORDS: Final = {"integer": "int", "string": "str", "boolean": "bool", "number": "float", "null": "null"}
_METHODS: Final = ("get", "post", "put", "patch", "delete", "head")


def page(document: Mapping[str, Any]) -> str:
    """Return the page."""
    info = document.get("info", {})
    lines = [
        "# HTTP API",
        "",
        "Generated from `docs/openapi.json`, which a test compares with a running agent.",
        "[The protocol](../protocol.md) says what the routes promise.",
        "",
        *([info["description"], ""] if info.get("description") else []),
        "## Routes",
        "",
    ]
    for path, item in document.get("paths", {}).items():
        shared = item.get("parameters", [])
        for method in _METHODS:
            if method in item:
                lines += _route(f"{method.upper()} {path}", item[method], shared)
    if schemas := document.get("components", {}).get("schemas"):
        lines += ["## Bodies", ""]
        for name, schema in schemas.items():
            lines += _body(name, schema)
    return "\n".join(lines).rstrip() + "\n"


def _route(title: str, operation: Mapping[str, Any], shared: list[Any]) -> Iterator[str]:
    yield from (f"### `{title}`", "")
    for key in ("summary", "description"):
        if operation.get(key):
            yield from (operation[key], "")
    if parameters := [*shared, *operation.get("parameters", [])]:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
        for one in parameters:
            if "$ref" in one:
                yield f"| `{one['$ref'].rpartition('/')[2]}` | | | |"
                continue
            needed = "" if one.get("required") else ", optional"
            kind = _cell(type_of(one.get("schema", {})))
            yield f"| `{one['name']}` | {one['in']}{needed} | {kind} | {_cell(one.get('description', ''))} |"
        yield ""
    rows = [("takes", "", operation["requestBody"])] if "requestBody" in operation else []
    rows += [("answers", str(status), answer) for status, answer in operation.get("responses", {}).items()]
    if rows:
        yield from ("| | status | body | meaning |", "|---|---|---|---|")
        for word, status, one in rows:
            bodies = " or ".join(
                f"{type_of(content.get('schema', {}))} (`{media}`)"
                for media, content in one.get("content", {}).items()
            )
            yield f"| {word} | {status} | {_cell(bodies)} | {_cell(one.get('description', ''))} |"
        yield ""


def _body(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if schema.get("description"):
        yield from (schema["description"], "")
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        yield from ("| field | type | meaning |", "|---|---|---|")
        for field, one in properties.items():
            optional = "" if field in required else ", optional"
            yield f"| `{field}` | {_cell(type_of(one))}{optional} | {_cell(one.get('description', ''))} |"
    else:
        yield type_of(schema)
    yield ""


def type_of(schema: Mapping[str, Any]) -> str:
    """Return a type of JSON Schema in a few words, with links to the bodies that it names."""
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"const": value}:
            return f"`{value!r}`"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"anyOf": choices} | {"oneOf": choices}:
            return " or ".join(type_of(choice) for choice in choices)
        case {"allOf": [only]}:
            return type_of(only)
        case {"type": "array", "items": items}:
            return f"list of {type_of(items)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"map to {type_of(values)}"
        case {"type": list(kinds)}:
            return " or ".join(_WORDS.get(str(kind), str(kind)) for kind in kinds)
        case {"type": str(kind)}:
            return f"{_WORDS.get(kind, kind)}{_format(schema)}"
        case _:
            return "any"


def _format(schema: Mapping[str, Any]) -> str:
    return f" ({schema['format']})" if "format" in schema else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
