"""The checkers share nothing with the code that they judge."""

from __future__ import annotations

import sys

from tests.support.project import source
from tests.support.project.source import Module


def _foreign(modules: tuple[Module, ...]) -> list[str]:
    """Return the imports that are neither of the standard library nor of the checkers."""
    allowed = ("tests.checkers", *sys.stdlib_module_names)
    return [
        f"{module.path}:{line} imports {name}"
        for module in modules
        for name, line in source.imports(module)
        if not source.below(name, *allowed)
    ]


def test_the_checkers_import_the_standard_library_only() -> None:
    """A mistake in the product's idea of a snapshot must not be in its judge as well."""
    modules = source.modules_of("tests/checkers")
    assert "tests/checkers/black_box.py" in {module.path for module in modules}
    assert _foreign(modules) == []


def test_an_import_of_the_product_would_be_seen() -> None:
    """The rule finds an offender."""
    offender = Module.parse(
        "tests/checkers/x.py", "from tidelock.csnlog.core.ids import Csn\nimport networkx"
    )
    assert len(_foreign((offender,))) == 2
