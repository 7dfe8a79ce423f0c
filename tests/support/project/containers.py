"""Finds what grows in the product: every queue, cache and other container that an object keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

#: Packages whose objects live in an agent; stand-ins for tests are left out.
PACKAGES = ("csnlog", "replication", "replica_agent")
_LEFT_OUT = ("csnlog/testing",)
#: Calls that make an empty container.
_MAKERS = frozenset(
    {"dict", "set", "list", "deque", "OrderedDict", "Counter", "defaultdict"}
    | {"SimpleQueue", "Queue", "PriorityQueue", "LifoQueue"}
)
#: Decorators that make a cache.
_CACHES = frozenset({"cache", "lru_cache"})


def containers(root: Path) -> set[tuple[str, str]]:
    """Return (path, attribute or function) of each container that is made empty and can grow."""
    found: set[tuple[str, str]] = set()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(_LEFT_OUT):
                found |= {(name, attribute) for attribute in in_source(path.read_text(encoding="utf-8"))}
    return found


def in_source(source: str) -> set[str]:
    """Return the names of the containers in one module."""
    return {name for node in ast.walk(ast.parse(source)) for name in _names(node)}


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(body=body):
            for item in body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    if _is_field(item.value):
                        yield item.target.id
                elif isinstance(item, ast.FunctionDef) and item.name in {"__init__", "__post_init__"}:
                    yield from _of_self(item)
        case ast.FunctionDef(name=name, decorator_list=decorators):
            if any(_called(decorator) in _CACHES for decorator in decorators):
                yield name


def _of_self(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), value=made):
                if _is_empty(made):
                    yield name
            case ast.Assign(targets=targets, value=made):
                for target in targets:
                    yield from _assigned(target, made)


def _assigned(target: ast.expr, made: ast.expr) -> Iterator[str]:
    match target, made:
        case ast.Tuple(elts=names), ast.Tuple(elts=values):
            for one, value in zip(names, values, strict=True):
                yield from _assigned(one, value)
        case ast.Attribute(value=ast.Name(id="self"), attr=name), _ if _is_empty(made):
            yield name


def _is_field(value: ast.expr | None) -> bool:
    """Return whether a field of a dataclass begins as an empty container."""
    if not isinstance(value, ast.Call) or _called(value) != "field":
        return False
    return any(
        keyword.arg == "default_factory" and _called(keyword.value) in _MAKERS for keyword in value.keywords
    )


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=[]):
            return _called(value) in _MAKERS
    return False


def _called(node: ast.expr) -> str:
    """Return the last name of what is called, or of a name."""
    match node:
        case ast.Call(func=function):
            return _called(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(value=value):
            return _called(value)
    return ""
