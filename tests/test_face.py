"""The public names: what the documentation in the code speaks of can be imported."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fairlead
from fairlead.core import errors

SOURCE = Path(fairlead.__file__).parent
MODULES = {
    ".".join(("fairlead", *path.relative_to(SOURCE).with_suffix("").parts)): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name not in ("__main__.py", "__init__.py")
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, DOCUMENTED):
            yield ast.get_docstring(node) or ""


def raised() -> set[str]:
    """Return the names of every error and signal that is defined for users."""
    return {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException | Warning)
    }


@pytest.mark.parametrize("name", sorted(raised()))
def test_every_error_can_be_imported(name: str) -> None:
    assert name in fairlead.__all__
    assert getattr(fairlead, name) is getattr(errors, name)


@pytest.mark.parametrize("module", MODULES)
def test_every_error_that_a_docstring_names_can_be_imported(module: str) -> None:
    """Also one that is defined elsewhere than with the others."""
    named = {
        name
        for text in docstrings(MODULES[module])
        for name in re.findall(r"`([A-Z]\w+)`|\b(?:[Rr]aises?) ([A-Z]\w+)", text)
        for name in name
        if name
    }
    found = {name for name in named if _is_error(module, name)}
    assert found <= set(fairlead.__all__)


def _is_error(module: str, name: str) -> bool:
    value = getattr(errors, name, None) or getattr(importlib.import_module(module), name, None)
    ours = getattr(value, "__module__", "").startswith("fairlead")
    return ours and isinstance(value, type) and issubclass(value, Exception)


def test_the_tree_of_errors_is_told_as_it_is() -> None:
    """What `core/errors.py` draws at its head is what there is."""
    told = set(re.findall(r"^[ │├└─]+(\w+)", errors.__doc__ or "", re.MULTILINE))
    assert raised() == told
