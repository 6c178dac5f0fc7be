"""Program and pages speak plain English: no words that an operator would have to read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.parsing import parsed

import airflow_outbox

PACKAGE = Path(airflow_outbox.__file__).parent
PAGES = [PACKAGE.parent / "README.md", *sorted((PACKAGE.parent / "docs").rglob("*.md"))]
DIALECT = re.compile(
    r"\b(?:anew|in vain|as such|such as has|is of|come to|is meant by|none of ours|heard of|in the place of|as ever)\b"
    r"|(?:^|[.:;] )(?:Who|What|Of) "
)


def texts(source: str) -> Iterator[str]:
    """Every text of a module, docstrings included: those of errors are messages, those of commands their help."""
    tree = parsed(source)
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


def test_pages_are_in_plain_english() -> None:
    assert len(PAGES) > 20
    said = [
        f"{page.relative_to(PACKAGE.parent)}: {found.group()} {paragraph}"
        for page in PAGES
        for paragraph in prose(page.read_text("utf-8"))
        if (found := DIALECT.search(paragraph))
    ]
    assert not said, said


def prose(page: str) -> Iterator[str]:
    """Every paragraph, item and row of a page, without headings and blocks of code."""
    text = re.sub(r"^```.*?^```$|^#.*?$", "", page, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*|]|\d+\.) ", text):
        yield " ".join(paragraph.split())
