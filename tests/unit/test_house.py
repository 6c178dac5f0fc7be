"""The house in order: one name has one meaning, and a class that is large says why."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from support.parsing import parsed

import airflow_outbox

PACKAGE = Path(airflow_outbox.__file__).parent
MODULES = {path.relative_to(PACKAGE): parsed(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
PUBLIC_NAME = re.compile(r"[A-Z]\w*[a-z]\w*")
SAME_NAME: dict[str, str] = {}
"""Names that two modules give, with the reason."""


def names_given(module: ast.Module) -> Iterator[str]:
    """The classes and aliases of types that a module has for others, without type variables."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and not is_type_variable(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def is_type_variable(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in {"TypeVar", "ParamSpec"}
    )


def test_one_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, module in MODULES.items():
        for name in names_given(module):
            if PUBLIC_NAME.fullmatch(name):
                places[name].append(str(path))
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert len(places) > 500
    assert {name: where for name, where in shared.items() if name not in SAME_NAME} == {}
    assert SAME_NAME.keys() <= shared.keys()


MOST_LINES = 255
MOST_ATTRIBUTES = 15
REASON = "The class is large because"


def attributes(defined: ast.ClassDef) -> set[str]:
    """The attributes that a class's own methods set."""
    return {
        node.attr
        for node in ast.walk(defined)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def is_large(defined: ast.ClassDef) -> bool:
    assert defined.end_lineno is not None
    lines = defined.end_lineno - defined.lineno + 1
    return lines > MOST_LINES or len(attributes(defined)) > MOST_ATTRIBUTES


def test_a_large_class_says_why() -> None:
    large = {
        node.name: " ".join((ast.get_docstring(node) or "").split())
        for module in MODULES.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and is_large(node)
    }
    assert large.keys() >= {"Leadership", "OutboxTable"}
    assert [name for name, text in large.items() if REASON not in text] == []


def test_only_large_classes_say_why() -> None:
    said = {
        node.name
        for module in MODULES.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and REASON in " ".join((ast.get_docstring(node) or "").split())
        if not is_large(node)
    }
    assert said == set()
