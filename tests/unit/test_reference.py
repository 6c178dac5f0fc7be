"""The API reference is complete: every public name has a text, types, the errors it raises, and an example that runs.

The examples are Python blocks of docs/. tests/integration/test_reference.py runs those of the reference; the tests of
the other pages run theirs.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from support.parsing import parsed
from support.public_names import HELD, ROOT

from airflow_outbox.errors import OutboxError

RAISE_NOTHING = {
    "airflow_outbox.tickets.published.TicketState",
    "airflow_outbox.tickets.published.TicketStatus",
    "airflow_outbox.triggers.watermark.OutboxWatermarkTrigger",
    "airflow_outbox.values.records.OutboxRecord.header_pairs",
}
MADE_BY_OTHERS = {
    "airflow_outbox.errors.naming_cluster",
    "airflow_outbox.tickets.published.TicketStatus.with_parked",
}
"""Names that the package itself calls, and that stay only because they were shown once."""
CALLED_BY_AIRFLOW = "execute_complete"
NAMES = [
    name
    for name in json.loads(HELD.read_text("utf-8"))["python"]
    if name not in MADE_BY_OTHERS and not name.endswith((CALLED_BY_AIRFLOW, "__version__"))
]


def thing(name: str) -> Any:
    """The function or class; what `airflow_outbox` exports may have a submodule's name."""
    package, _, last = name.rpartition(".")
    return getattr(resolve_name(package), last) if package == "airflow_outbox" else resolve_name(name)


CALLABLES = [name for name in NAMES if not (inspect.isclass(thing(name)) and issubclass(thing(name), Exception))]
ERRORS = [name for name in NAMES if name not in CALLABLES]


def text_of(named: Any) -> str:
    """The docstring: of a class, with that of its constructor."""
    has_constructor = inspect.isclass(named) and "__init__" in vars(named)
    parts = [named, named.__init__] if has_constructor else [named]
    return "\n".join(inspect.cleandoc(part.__doc__ or "") for part in parts)


def used(page: Path) -> Iterator[str]:
    """The names that a page's Python uses; an import alone shows nothing."""
    for block in re.findall(r"^```python.*?\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        for node in ast.walk(parsed(textwrap.dedent(block))):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr


USED = {name for page in (ROOT / "docs").rglob("*.md") for name in used(page)}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_public_name_has_a_text_types_errors_and_an_example(name: str) -> None:
    named = thing(name)
    text = text_of(named)
    assert len(text.split()) > 4, "say what it means"
    if name.endswith("TicketState"):
        assert any(state.name in USED for state in named)
    else:
        signature = inspect.signature(named)
        untyped = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty and parameter.name != "self"
        ]
        assert untyped == []
        assert inspect.isclass(named) or signature.return_annotation is not signature.empty
    tells_of_errors = re.search(r"\b[Rr]aises?\b|Error\b|\"failed\"", text) is not None
    assert tells_of_errors != (name in RAISE_NOTHING), "say which errors it raises"
    assert name.rpartition(".")[2] in USED, "show it in a Python block"


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_says_what_happened_and_what_to_do(name: str) -> None:
    error = thing(name)
    assert issubclass(error, OutboxError | UserWarning)
    assert len((inspect.getdoc(error) or "").split()) > 4


def test_the_page_on_errors_shows_how_to_catch_them() -> None:
    shown = set(used(ROOT / "docs" / "reference" / "errors.md"))
    assert {name.rpartition(".")[2] for name in ERRORS} & shown >= {"OutboxError", "InvalidRecordError"}


def test_every_name_is_on_a_page_of_the_reference() -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    for name in NAMES:
        assert name.rpartition(".")[2] in pages or name.startswith("airflow_outbox.errors."), name
