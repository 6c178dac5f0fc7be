"""What the program says is plain English: no message has words that an operator would have to read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import airflow_outbox

PACKAGE = Path(airflow_outbox.__file__).parent
DIALECT = re.compile(
    r"\b(?:anew|in vain|as such|such as has|come to|is meant by|none of ours|heard of)\b|(?:^|[.:;] )(?:Who|What|Of) "
)


def texts(source: str) -> Iterator[str]:
    """Every text of a module, docstrings included: those of errors are messages, those of commands their help."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def test_messages_are_in_plain_english() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert paths
    said = [
        f"{path.relative_to(PACKAGE)}: {text}"
        for path in paths
        for text in texts(path.read_text("utf-8"))
        if DIALECT.search(" ".join(text.split()))
    ]
    assert not said, said
