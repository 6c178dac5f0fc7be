"""The README and docs/ are true: the site builds, excerpts are of the files they name, tables are complete."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

import pytest
import yaml
from click import Command, Group
from support.parsing import parsed

from airflow_outbox.airflow_cli.definition import CONNECTIONS
from airflow_outbox.cli import main
from airflow_outbox.harvest.config import (
    HarvestConfig,
    Limits,
    PositionsSettings,
    TracingSettings,
    TransactionHeaders,
    VerdictSettings,
)
from airflow_outbox.harvest.goharvest import GoharvestFile
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.settings_base import names as setting_names
from airflow_outbox.harvest.term import SLOWEST_POLL
from airflow_outbox.operate.acls import DATA_TOPIC, needed_acls
from airflow_outbox.spark.options import OPTION_NAMES
from airflow_outbox.values.metrics import METRICS, QUANTILES, Metric, MetricKind, Stage
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.verdict import State

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_outbox"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_TYPES = {"text", "number", "object", "list", "number or null", "text or null", "true or false"}
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; `title` is the file that it is, or is an excerpt of."""

    page: Path
    language: str
    title: str | None
    text: str


def blocks(*languages: str) -> list[Block]:
    return [
        Block(page, language, title or None, text)
        for page in PAGES
        for language, title, text in _BLOCK.findall(page.read_text("utf-8"))
        if not languages or language in languages
    ]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", page.read_text("utf-8"))


def code_words(page: Path) -> Iterator[str]:
    """The words in backticks in a page's prose."""
    yield from _CODE.findall(prose(page))


def table_rows(page: Path) -> Iterator[list[str]]:
    """The rows of a page's tables, without their headings."""
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def where(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}: {block.text.strip().splitlines()[0][:40]}"


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")], capture_output=True, text=True, env=environment, cwd=ROOT
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    html = list((tmp_path / "site").rglob("*.html"))
    assert len(html) == len(list(DOCS.rglob("*.md"))) + 1  # and 404.html
    for page in html:
        assert not re.search(r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//", page.read_text("utf-8")), page
        assert not re.search(r"<link[^>]+stylesheet[^>]+href=\"(?:https?:)?//", page.read_text("utf-8")), page


@pytest.mark.parametrize("picture", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_can_be_read_by_all_and_is_on_a_page(picture: Path) -> None:
    drawing = ElementTree.parse(picture).getroot()
    space = {"svg": "http://www.w3.org/2000/svg"}
    named = drawing.attrib["aria-labelledby"].split()
    told = [part for kind in ("title", "desc") for part in drawing.findall(f"svg:{kind}", space)]
    assert [part.attrib["id"] for part in told if part.text] == named == ["title", "description"]
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    [ground] = [each for each in drawing.findall("svg:rect", space) if each.get("fill") == "#ffffff"][:1]
    assert (float(ground.attrib["width"]), float(ground.attrib["height"])) == (width, height), (
        "legible in the dark, too"
    )
    assert not re.search(r"(?:href|src)=", picture.read_text("utf-8")), "nothing is fetched"
    assert any(f"images/{picture.name})" in page.read_text("utf-8") for page in PAGES)


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS)}\n" in settings


def test_the_readme_begins_with_the_two_commands() -> None:
    first = next(block for block in blocks() if block.page.name == "README.md")
    assert re.findall(r"^(\S+ \S+) +#", first.text, re.MULTILINE) == ["./dev demo", "./dev test"]
    assert len(first.text.splitlines()) == 2


def test_excerpts_are_of_the_files_they_name() -> None:
    excerpts = [block for block in blocks() if block.title and "/" in block.title]
    assert {block.page.name for block in excerpts} >= {"README.md", "airflow.md", "spark.md"}
    for block in excerpts:
        assert block.text in (ROOT / str(block.title)).read_text("utf-8"), where(block)


@pytest.mark.parametrize("block", blocks("python"), ids=where)
def test_python_is_python_and_imports_and_dags_work(block: Block) -> None:
    tree = ast.parse(textwrap.dedent(block.text), where(block))
    only_imports = all(isinstance(statement, ast.Import | ast.ImportFrom) for statement in tree.body)
    if only_imports or "from airflow.sdk import DAG" in block.text:
        exec(compile(tree, where(block), "exec"), {"__doc__": None, "__file__": str(block.page)})


@pytest.mark.parametrize("block", blocks("yaml"), ids=where)
def test_yaml_is_a_configuration(block: Block) -> None:
    HarvestConfig.validated(yaml.safe_load(block.text), source=where(block))


def test_files_and_links_lead_somewhere() -> None:
    for page in PAGES:
        for link in _LINK.findall(prose(page)):
            assert (page.parent / link).exists(), f"{page.relative_to(ROOT)} links to {link}"
        for word in code_words(page):
            if re.match(r"(?:airflow_outbox|dags|tests|docs|\.ci)/[\w./-]*$", word) and "what_it_does" not in word:
                assert (ROOT / word).exists(), f"{page.relative_to(ROOT)} names {word}"


def test_what_is_named_is_there() -> None:
    classes = {
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(parsed(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    named = set()
    for page in PAGES:
        text = page.read_text("utf-8")
        for dotted in re.findall(r"\bairflow_outbox(?:\.\w+)+", text):
            resolve_name(dotted)
            named.add(dotted)
        for name in re.findall(r"`((?:Outbox|Harvest)\w+)", text):
            assert name in classes, f"{page.relative_to(ROOT)} names {name}"
            named.add(name)
    assert named >= {"airflow_outbox.harvest.kafka.election", "OutboxHarvestSensor"}


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    documented = {row[0].strip("`"): row[1] for row in table_rows(DOCS / "reference" / "configuration.md")}
    settings = {
        **defaults(HarvestConfig, except_for={"limits", "positions", "tracing", "transaction_headers", "verdict"}),
        **defaults(TransactionHeaders, prefix="transaction_headers."),
        **defaults(Limits, prefix="limits."),
        **defaults(VerdictSettings, prefix="verdict."),
        **defaults(TracingSettings, prefix="tracing."),
        **defaults(PositionsSettings, prefix="positions."),
    }
    documented.pop("setting")
    assert documented == settings


def defaults(model: Any, *, prefix: str = "", except_for: Iterable[str] = ()) -> dict[str, str]:
    """The settings of a group with their defaults as the table writes them."""

    def written(field: Any) -> str:
        if field.is_required():
            return "(needed)"
        default = field.get_default(call_default_factory=True)
        return "`null`" if default is None else f"`{default}`"

    return {prefix + name: written(field) for name, field in model.model_fields.items() if name not in set(except_for)}


def test_the_acls_of_a_harvester_are_on_the_page() -> None:
    config = HarvestConfig.validated({"data_source": "", "kafka": {"bootstrap.servers": "h:9092"}}, source="test")
    names = KafkaNames.of(config, UUID(int=0))
    meant = {
        names.leader_group_id: "the election's group",
        names.leader_topic: "the election's topic",
        names.ledger_topic: "the ledger",
        DATA_TOPIC: "each data topic",
    }
    rows = [
        f"| {acl.operation} | {meant.get(acl.name, 'each transactional id')} | `{acl.purpose}` |"
        for acl in needed_acls(config, names, [DATA_TOPIC])
    ]
    table = "\n".join(["| operation | on | for |", "| --- | --- | --- |", *dict.fromkeys(rows)])
    assert table in (DOCS / "how-to" / "secure-kafka.md").read_text("utf-8"), table


def test_how_often_an_idle_leader_looks() -> None:
    fastest = Limits.model_fields["poll_interval"].default
    text = (DOCS / "concepts" / "harvesting.md").read_text("utf-8")
    assert f"looks every {1000 * fastest:.0f} ms at first" in text
    assert f"down to every {1000 * SLOWEST_POLL:.0f} ms" in text


def test_every_option_of_a_spark_write_is_in_the_reference() -> None:
    rows = [row[0] for row in table_rows(DOCS / "reference" / "spark.md") if row[0] != "option"]
    assert [name for row in rows for name in _CODE.findall(row)] == list(OPTION_NAMES)


def test_goharvests_settings_are_goharvests() -> None:
    harvest = GoharvestFile.model_fields["harvest"].annotation
    limits = harvest.model_fields["limits"].annotation
    known = {*setting_names(harvest), *(f"limits.{name}" for name in setting_names(limits)), "logging.level"}
    rows = [row for row in table_rows(DOCS / "how-to" / "goharvest.md") if row[0] != "goharvest"]
    assert rows
    for theirs, _ in rows:
        assert set(_CODE.findall(theirs)) <= known


def emitted() -> dict[str, set[str]]:
    """The events that the engine emits, each with the fields that it ever has."""
    found: dict[str, set[str]] = {}
    for path in [*(PACKAGE / "harvest").rglob("*.py"), *(PACKAGE / "positions").rglob("*.py")]:
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            if called.strip("_") in ("events", "event_line") and isinstance(node.args[0], ast.Constant):
                fields = {keyword.arg for keyword in node.keywords if keyword.arg}
                found.setdefault(str(node.args[0].value), set()).update(fields)
    return found


def test_every_event_is_in_the_reference_with_its_fields() -> None:
    rows = [row for row in table_rows(DOCS / "reference" / "events.md") if row[0].startswith("`")]
    fields = {row[0].strip("`") for row in rows if row[1] in _TYPES}
    events = {row[0].strip("`"): set(_CODE.findall(row[1])) for row in rows if row[1] not in _TYPES}
    assert len(events) > 5
    assert events == emitted()
    assert fields == set().union(*events.values())


def test_every_metric_is_in_the_reference() -> None:
    def written(metric: Metric) -> list[str]:
        labels = ["outbox", *metric.labels, *(["quantile"] if metric.kind is MetricKind.SUMMARY else [])]
        names = [f"`{name}`" if name else "" for name in (metric.name, metric.stats_name)]
        return [*names, metric.kind, metric.unit, ", ".join(f"`{label}`" for label in labels), metric.meaning]

    rows = [row for row in table_rows(DOCS / "reference" / "metrics.md") if len(row) == 6]
    assert rows[1:] == [written(metric) for metric in METRICS]


def test_every_label_of_a_metric_is_in_the_reference() -> None:
    rows = {row[0].strip("`"): row[1] for row in table_rows(DOCS / "reference" / "metrics.md") if len(row) == 2}
    assert rows.keys() - {"label"} == {"outbox", "quantile", *(label for each in METRICS for label in each.labels)}
    for label, values in {"state": State, "stage": Stage, "quantile": map(str, QUANTILES)}.items():
        assert _CODE.findall(rows[label]) == list(values)


def test_how_many_metrics_are_about_what() -> None:
    kinds = [re.findall(r"^airflow_outbox_(shard|cluster|positions)_", metric.name or "") for metric in METRICS]
    counts = [len(list(alike)) for _, alike in groupby(kinds)]
    text = " ".join((DOCS / "reference" / "metrics.md").read_text("utf-8").split())
    said = re.findall(r"(?:The first|The next|and|Then come) (\w+) (?:are )?about (?:the outbox|each|positions)", text)
    numbers = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert [numbers.index(word) + 1 for word in said] == counts[:4]


def test_every_cause_of_parking_is_on_the_pages() -> None:
    rows = [row for row in table_rows(DOCS / "concepts" / "parking.md") if row[0].startswith("`")]
    assert {row[0].strip("`"): row[2] for row in rows} == {cause: "yes" if cause.can_pass else "no" for cause in Cause}
    text = (DOCS / "how-to" / "incidents.md").read_text("utf-8")
    [remedies] = re.findall(r"^\| cause \| what removes it \|\n\| --- .*\n((?:\|.*\n)+)", text, re.MULTILINE)
    causes = [cause for row in remedies.splitlines() for cause in _CODE.findall(row.split("|")[1])]
    assert sorted(causes) == sorted(Cause)
    passing = {cause for cause in Cause if cause.can_pass}
    assert "with the first five causes, and those with `untried` or `spread`, are tried again" in " ".join(text.split())
    assert {*causes[:5], Cause.UNTRIED, Cause.SPREAD} == passing


def commands() -> Iterator[tuple[str, Command]]:
    """Every command by its name, and those of groups by both names."""
    for name, command in main.commands.items():
        yield name, command
        if isinstance(command, Group):
            yield from ((f"{name} {below}", each) for below, each in command.commands.items())


def test_every_command_and_option_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "commands.md").read_text("utf-8")
    options = {flag for argument in CONNECTIONS for flag in argument.flags}
    for name, command in commands():
        assert re.search(rf"^##+ {name}$", text, re.MULTILINE), name
        options |= {option for parameter in command.params for option in parameter.opts if option.startswith("-")}
        for parameter in command.params:
            if isinstance(parameter.default, str | int | float) and not getattr(parameter, "is_flag", False):
                assert re.search(rf"`{parameter.opts[0]}` \| `{re.escape(str(parameter.default))}`", text), (
                    parameter.opts
                )
    assert set(re.findall(r"`(-[-a-z]+)", text)) - {"--help", "--version"} <= options
    assert options <= set(re.findall(r"`(-[-a-z]+)", text))


def test_every_room_is_in_the_house() -> None:
    text = (DOCS / "development.md").read_text("utf-8")
    for path in PACKAGE.iterdir():
        if path.suffix == ".py" and path.name != "__init__.py":
            assert f"`airflow_outbox/{path.name}`" in text, path.name

        elif (path / "__init__.py").exists():
            assert f"`airflow_outbox/{path.name}/`" in text, path.name
    for path in (ROOT / "tests").iterdir():
        if any(path.rglob("test_*.py")):
            assert f"`tests/{path.name}/`" in text, path.name


def test_the_messages_of_troubleshooting_are_messages() -> None:
    said = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(parsed(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.add(" ".join(node.value.split()))
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    _, _, table = page.partition("| you read | why | what to do |")
    read = re.findall(r"^\| `([^`]+)` \|", table.partition("\n## ")[0], re.MULTILINE)
    assert len(read) > 10
    assert [text for text in read if not any(text in message for message in said)] == []


def test_every_state_is_in_troubleshooting() -> None:
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    first = page.partition("## Records come twice")[0]
    assert [
        state for state in State if f"`{state.words}`" not in first and state.words not in {"HEALTHY", "UNKNOWN"}
    ] == []


def test_the_glossary_is_in_order() -> None:
    words = [row[0] for row in table_rows(DOCS / "glossary.md")][1:]
    assert words == sorted(set(words), key=str.lower)
