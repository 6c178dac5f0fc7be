"""Prometheus as tests ask it: what rules say of scrapes of `/metrics`, repeated for some time (by promtool)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "docs" / "monitoring"
SCRAPES = Path(__file__).with_name("scrapes")
INTERVAL = 15
"""Seconds between two scrapes, and between two evaluations of the rules."""
_UNPACKED = ROOT / ".dev" / "prometheus" / "usr" / "bin" / "promtool"  # by ./dev

Scrape = Mapping[str, str]
"""The samples of one scrape: a series, without what Prometheus adds, and its value."""
Condition = Mapping[str, Scrape]
"""The scrapes of several members at a time, by instance."""


def samples(text: str) -> dict[str, str]:
    """The samples of the outbox in an answer of `/metrics`."""
    lines = [line for line in text.splitlines() if line.startswith("airflow_outbox_")]
    return dict(line.rsplit(" ", 1) for line in lines)


def recorded(name: str) -> Condition:
    """The scrapes recorded in `tests/support/scrapes`."""
    return {file.stem: samples(file.read_text("utf-8")) for file in sorted((SCRAPES / name).glob("*.txt"))}


def promtool(*arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    program = _UNPACKED if _UNPACKED.exists() else shutil.which("promtool")
    assert program, "promtool is missing: run the tests by ./dev test, or install Prometheus"
    return subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=300)


def series(timeline: Sequence[tuple[Condition, int]]) -> list[dict[str, str]]:
    """The series that Prometheus keeps of conditions that last so many scrapes each, one after the other.

    A series that is not in a scrape any more is marked as stale, as Prometheus does at once.
    """
    steps = [condition for condition, scrapes in timeline for _ in range(scrapes)]
    names = {(instance, name) for condition in steps for instance, scrape in condition.items() for name in scrape}
    found = []
    for instance, name in sorted(names):
        values = [condition.get(instance, {}).get(name, "_") for condition in steps]
        for place in range(len(values) - 1, 0, -1):
            if values[place] == "_" != values[place - 1]:
                values[place] = "stale"
        metric, labels = re.fullmatch(r"(\w+)(?:\{(.*)\})?", name).groups()  # type: ignore[union-attr]
        selector = ",".join(filter(None, [labels, f'instance="{instance}"', 'job="outbox"']))
        found.append({"series": f"{metric}{{{selector}}}", "values": " ".join(values)})
    return found


def require(
    folder: Path,
    rules: Path,
    timeline: Sequence[tuple[Condition, int]],
    *,
    firing: Mapping[int, Iterable[str]] | None = None,
    alerts: Sequence[Mapping[str, Any]] = (),
    interval: int = INTERVAL,
) -> None:
    """Fail unless exactly these alerts fire so many seconds after the start; `alerts` are tests in promtool's form."""
    asked = [
        {
            "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{seconds}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)],
        }
        for seconds, names in (firing or {}).items()
    ]
    test = {
        "interval": f"{interval}s",
        "input_series": series(timeline),
        "promql_expr_test": asked,
        "alert_rule_test": list(alerts),
    }
    whole = {"rule_files": [str(rules)], "evaluation_interval": f"{interval}s", "tests": [test]}
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(whole))
    found = promtool("test", "rules", file)
    assert found.returncode == 0, found.stdout + found.stderr
