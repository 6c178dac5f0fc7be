"""The surroundings in which a figure was taken."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from airflow_outbox import __version__
from airflow_outbox.demo.embedded.jars import KAFKA_VERSION


def surroundings(data_source: str) -> dict[str, Any]:
    """The machine, the versions, the date, and how busy the machine was before (its load over one and five minutes)."""
    with psycopg.connect(data_source) as connection:
        postgres = connection.info.parameter_status("server_version")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "postgres": postgres,
        "kafka": KAFKA_VERSION,
        "airflow_outbox": __version__,
        "load_before": [round(load, 2) for load in os.getloadavg()[:2]],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
