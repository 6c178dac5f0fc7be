"""Pass a harvesting process' metrics on to Airflow's stats, which that process does not have."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from airflow_outbox.values.metrics import PUBLISHED, RESTARTS, VERDICT, MetricKind, flattened
from airflow_outbox.values.verdict import State
from airflow_outbox.version_compat import metrics

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters of a tag for which Airflow drops the whole metric."""


class StatsRelay:
    """Sends one outbox's metrics. Counters go on over several processes, each of which begins at zero.

    An error does not concern the harvest: the first one goes to `complain`.
    """

    def __init__(self, outbox: str, complain: Callable[[str], object]) -> None:
        self._outbox = outbox
        self._complain = complain
        self._has_complained = False
        self._counted: Counter[str] = Counter()
        self._has_told_verdict = False

    def lose_sight(self) -> None:
        """Nobody here sees how the outbox is doing: that is its verdict, if one was sent before."""
        if self._has_told_verdict:
            self._measured({VERDICT.key: {state.value: int(state is State.UNKNOWN) for state in State}})

    def restarts(self) -> None:
        """Another process begins."""
        self._counted.clear()
        self._send("incr", RESTARTS.stats_name, 1)

    def take(self, event: Mapping[str, Any]) -> None:
        """Send what an event of the process tells, if it is `progress` or `measured`."""
        if event["event"] == "progress":
            for topic, count in (event.get("topics") or {}).items():
                self._send("incr", PUBLISHED.stats_name, count, topic=topic)
        elif event["event"] == "measured":
            self._measured(event.get("metrics") or {})

    def _measured(self, values: Mapping[str, Any]) -> None:
        self._has_told_verdict |= VERDICT.key in values
        for sample in flattened(values):
            name = sample.metric.stats_name
            if sample.metric.kind is not MetricKind.COUNTER:
                self._send("gauge", name, sample.value, **sample.labels)
            elif more := int(sample.value) - self._counted[name]:
                self._counted[name] += more
                self._send("incr", name, more, **sample.labels)

    def _send(self, how: str, name: str, value: float, **labels: str) -> None:
        tags = {label: _UNFIT.sub("_", text) for label, text in {"outbox": self._outbox, **labels}.items()}
        try:
            getattr(metrics(), how)(name, value, tags=tags)
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                self._complain(f"metrics can't be sent to Airflow's stats: {error!r}")
