"""How small a harvester is that serves metrics."""

from __future__ import annotations

from collections.abc import Callable
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from support.harvesting import CALM, PATIENCE, Outbox, Process, wait_until

pytestmark = pytest.mark.timed

MOST_MEMORY = 80 * 1024  # KiB; 73 MB were measured, of which 64 are those of `python -m airflow_outbox.harvest`


def test_a_harvester_that_serves_metrics_is_small(outbox: Outbox, start: Callable[..., Process]) -> None:
    process = start("--metrics-port", "0", limits=CALM)
    url = f"http://127.0.0.1:{process.wait_for('serving')['port']}/metrics"
    outbox.stash(1000)
    wait_until(lambda: outbox.left() == 0)
    found: dict[str, float] = {}

    def is_told() -> bool:
        with urlopen(url, timeout=PATIENCE) as answer:
            families = parse(answer.read().decode())
        found.update({sample.name: sample.value for family in families for sample in family.samples})
        return "process_resident_memory_bytes" in found and found.get("airflow_outbox_leading") == 1

    wait_until(is_told)
    resident = found["process_resident_memory_bytes"] / 1024
    print(f"{resident:.0f} KiB")
    assert resident < MOST_MEMORY
