"""Different names of clusters must not lead to the same one: its producers would fence each other."""

from __future__ import annotations

import threading

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.kafka.admin import Cluster


class DistinctClusters:
    """The clusters that a process has reached, by name. Several threads may use it."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._lock = threading.Lock()

    def require(self, name: str, cluster: Cluster) -> None:
        """Ask a cluster for its id, the first time. Raises ConfigurationError if another name leads there, KafkaError
        when there is no answer.
        """
        with self._lock:
            if name in self._ids:
                return
        found = cluster.identity()
        with self._lock:
            for other, known in self._ids.items():
                if known == found and other != name:
                    raise ConfigurationError(
                        f"{name} and {other} are the same cluster, {found}. Give each of clusters its own "
                        "bootstrap.servers"
                    )
            self._ids[name] = found
