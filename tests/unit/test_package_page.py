"""What an index shows of the package: README.md, in which no link is broken."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from support.scripts import script_of_ci

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TARGET = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = "https://example.org/outbox"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_of_ci("package_page")


def test_with_an_address_every_link_leads_to_a_file_of_the_version(script: ModuleType) -> None:
    page = script.page(README, version="1.2.3", source=f"{SOURCE}/")
    targets = TARGET.findall(page)
    assert len(targets) == len(TARGET.findall(README)) > 20
    for target in targets:
        place, file = re.fullmatch(rf"{SOURCE}/(raw|blob)/v1\.2\.3/([^#]+)(?:#.+)?", target).groups()  # type: ignore[union-attr]
        assert (ROOT / file).is_file(), target
        assert (place == "raw") is (Path(file).suffix == ".svg"), target


def test_without_an_address_no_link_is_left_and_every_word_is(script: ModuleType) -> None:
    page = script.page(README, version="1.2.3", source=None)
    assert TARGET.findall(page) == []
    assert page.startswith(re.sub(r"!?\[([^\]]*)\]\([^)\s]+\)", r"\1", README))
    assert page.splitlines()[-1].endswith("in its folder `docs/`.")


def test_other_addresses_places_of_the_page_and_code_stay_as_they_are(script: ModuleType) -> None:
    text = "[a](https://example.org) [b](#there) [c](mailto:me@example.org)\n\n```python\nx[0](y)\n```\n"
    assert script.page(text, version="1", source=SOURCE) == text
    assert script.page(text, version="1", source=None).startswith(text)


@pytest.mark.parametrize("urls", ["", f'[project.urls]\nSource = "{SOURCE}"\n'], ids=["nowhere", "somewhere"])
def test_the_address_is_given_in_one_place(urls: str, script: ModuleType, tmp_path: Path) -> None:
    """In pyproject.toml, from which the distributions get their metadata."""
    project = re.sub(
        r"^\[project\.urls\]\n(?:.+\n)*", "", (ROOT / "pyproject.toml").read_text("utf-8"), flags=re.MULTILINE
    )
    (tmp_path / "pyproject.toml").write_text(f"{project}\n{urls}", "utf-8")
    (tmp_path / ".ci").mkdir()
    for name in ("README.md", ".ci/package_page.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    core = ProjectMetadata(str(tmp_path), PluginManager()).core
    assert core.readme == script.page(README, version=core.version, source=SOURCE if urls else None)
    assert core.readme_content_type == "text/markdown"
