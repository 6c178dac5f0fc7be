"""What a harvester with `--metrics-port` serves."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse
from support.harvesting import PATIENCE, Process


class Served:
    """A harvester that serves metrics."""

    def __init__(self, process: Process) -> None:
        self.process = process
        process.wait_for("serving")

    @property
    def port(self) -> int:
        """Another one after it has read its configuration again."""
        return int([event for event in self.process.events if event["event"] == "serving"][-1]["port"])

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """The values, by name and by labels other than the outbox: `airflow_outbox_verdict state=healthy`. None while
        the process does not answer.
        """
        found: dict[str, float] = {}
        status, text = self.get("/metrics")
        for family in parse(text) if status == 200 else ():
            for sample in family.samples:
                labels = dict(sample.labels)
                assert labels.pop("outbox", "outbox") == "outbox"
                found[" ".join([sample.name, *(f"{name}={value}" for name, value in sorted(labels.items()))])] = (
                    sample.value
                )
        return found

    def health(self) -> tuple[int, dict[str, Any]]:
        status, text = self.get("/healthz")
        return status, json.loads(text) if text.startswith("{") else {"state": None, "cause": text}

    def is_live(self) -> bool:
        return self.get("/livez")[0] == 200

    def is_healthy(self) -> bool:
        return self.health()[0] == 200
