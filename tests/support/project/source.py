"""The content of the source files, read with `ast` and without importing any of them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: The top folders that are packages of the namespace `tidelock`.
PACKAGES = ("csnlog", "replication", "replica_agent", "spark", "tidelock")
#: Packages outside the namespace, whose names other programs look for.
ENTRIES = ("pyspark_tidelock",)
#: Packages of the checkout that are not installed. The first two have walls as the product has.
WALLED_BESIDE = ("workloads", "demo")
BESIDE = (*WALLED_BESIDE, "bench", "chaos", "examples")
#: Calls that make a file durable or give it another name, as `module.function`.
DURABILITY_CALLS = frozenset(
    ("os.fsync", "os.fdatasync", "os.rename", "os.renames", "os.replace", "os.link", "shutil.move")
)


#: A string, which may hold `#`, or a comment; `tokenize` finds the same in forty times the time.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"'''
    r"""|'''(?:[^'\\]|\\.|'(?!''))*'''|'(?:[^'\\\n]|\\.)*'|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Module:
    """One source file: its path from the root of the repository, its import name, its lines, its tree."""

    path: str
    name: str
    line_count: int
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Module:
        """Parse the text of the file at `path`; SyntaxError as `ast.parse` raises it."""
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        name = ".".join(parts if parts[0] not in PACKAGES or parts[0] == "tidelock" else ["tidelock", *parts])
        return cls(path=path, name=name, line_count=text.count("\n"), tree=ast.parse(text, path))


@functools.cache
def nodes(module: Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's tree; many rules look at each of them."""
    return tuple(ast.walk(module.tree))


@functools.cache
def modules_of(folder: str) -> tuple[Module, ...]:
    """All modules below a top folder, ordered by path; links to other folders are not followed."""
    return tuple(
        Module.parse(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.resolve() == path
    )


def room_of(name: str) -> str:
    """Return the folder of the module that an imported name belongs to.

    Args:
        name: A name of :func:`imports`: a module, a package, or a name inside of one.
    """
    parts = name.split(".")
    if parts[0] == "tidelock" and len(parts) > 1 and parts[1] in PACKAGES:
        del parts[0]
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        if path.with_suffix(".py").is_file():
            return "/".join(parts[: count - 1])
        if path.is_dir():
            return "/".join(parts[:count])
    raise AssertionError(f"{name} is nowhere in the tree")


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module without their signs: the first line, and a text.

    Those on consecutive lines are one text.
    """
    block: list[str] = []
    first = line = begin = 0
    for match in _STRING_OR_COMMENT.finditer(text):
        if match["comment"] is None:
            continue
        line, last, begin = line + text.count("\n", begin, match.start()), line, match.start()
        if block and line != last + 1:
            yield first + 1, "\n".join(block)
            block = []
        first = first if block else line
        block.append(match["comment"].lstrip("#:! "))
    if block:
        yield first + 1, "\n".join(block)


def summary(module: Module) -> str:
    """Return the first line of a module's docstring, or ``""``."""
    return (ast.get_docstring(module.tree) or "").split("\n", maxsplit=1)[0]


def product_modules() -> tuple[Module, ...]:
    """All modules of all packages that are installed."""
    return tuple(module for package in (*PACKAGES, *ENTRIES) for module in modules_of(package))


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Yield every imported name with its line: also below TYPE_CHECKING, in functions, by `import_module`.

    `from a import b` gives `a.b`, since b may be a module; a rule about `a` has to match prefixes, which
    `below` does.
    """
    for node in nodes(module):
        match node:
            case ast.Import(names=names):
                yield from ((alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=source, names=names, level=0):
                yield from ((f"{source}.{alias.name}", node.lineno) for alias in names)
            case ast.ImportFrom():
                raise AssertionError(f"{module.path}:{node.lineno}: relative import")
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name, node.lineno


def below(name: str, *prefixes: str) -> bool:
    """Return whether a dotted name is one of the prefixes, or a name inside one."""
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def functions(module: Module) -> Iterator[tuple[str, int, int]]:
    """Every function and method: its name, its line, and the number of its lines without decorators."""
    for node in nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def builtin_calls(module: Module, *names: str) -> Iterator[tuple[str, int]]:
    """Calls of the named built-in functions."""
    for node in nodes(module):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in names:
                yield name, node.lineno


def durability_calls(module: Module) -> Iterator[tuple[str, int]]:
    """Uses of `DURABILITY_CALLS`, and calls that look like `Path.rename(target)` or `Path.replace(target)`.

    Only those two take exactly one positional argument and no keyword: `str.replace` takes two, the `replace`
    of dataclasses and datetime takes keywords.
    """
    for name, line in imports(module):
        if name in DURABILITY_CALLS:
            yield name, line
    for node in nodes(module):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=attr) if f"{owner}.{attr}" in DURABILITY_CALLS:
                yield f"{owner}.{attr}", node.lineno
            case ast.Call(func=ast.Attribute(attr=("rename" | "replace") as attr), args=[_], keywords=[]):
                yield f"Path.{attr}", node.lineno


def with_transaction(module: Module) -> Iterator[int]:
    """Lines of `with <something>.transaction(...)`."""
    for node in nodes(module):
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                match item.context_expr:
                    case ast.Call(func=ast.Attribute(attr="transaction")):
                        yield node.lineno


#: Modules whose functions give something else in every process.
_DRAWING = frozenset({"random", "secrets", "time", "uuid"})


def drawn_parameters(module: Module) -> Iterator[int]:
    """Lines of `parametrize(...)` whose arguments call a module that draws."""
    for node in nodes(module):
        match node:
            case ast.Call(func=ast.Attribute(attr="parametrize")):
                names = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
                if not _DRAWING.isdisjoint(names):
                    yield node.lineno
