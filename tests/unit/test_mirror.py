"""The unit tests of a module are found by its name: these folders mirror the package."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parents[1] / "airflow_outbox"
FILES = sorted(path.relative_to(TESTS) for path in TESTS.glob("*/**/test_*.py"))
"""Those in folders: the ones beside this file are about the project as a whole."""


@pytest.mark.parametrize("file", FILES, ids=str)
def test_each_file_is_named_after_a_module_or_a_package(file: Path) -> None:
    tested = PACKAGE / file.with_name(file.stem.removeprefix("test_"))
    assert tested.with_suffix(".py").is_file() or (tested / "__init__.py").is_file(), tested.relative_to(PACKAGE)
