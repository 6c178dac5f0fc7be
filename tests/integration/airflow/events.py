"""What Airflow's metadata says of an asset: its events, which runs were told them, and who watches it."""

from __future__ import annotations

from typing import Any

import psycopg
from support.harvesting import Outbox, wait_until

EVENTS = """
SELECT count(*), count(*) FILTER (WHERE EXISTS (
    SELECT FROM dagrun_asset_event JOIN dag_run ON dag_run.id = dag_run_id WHERE event_id = e.id AND dag_id = %(dag)s
))
FROM asset_event e JOIN asset ON asset.id = asset_id WHERE uri LIKE %(uri)s
"""
COUNTED = """
SELECT coalesce(sum((e.extra::jsonb -> 'payload' ->> 'published')::bigint), 0)
FROM asset_event e JOIN asset ON asset.id = asset_id WHERE uri LIKE %(uri)s
"""
WATCHED = "SELECT count(*) FROM asset_watcher JOIN asset ON asset.id = asset_id WHERE uri LIKE %(uri)s"


class AssetEvents:
    """The events of an asset (`uri` is a pattern), and those that the runs of a Dag were told."""

    def __init__(self, metadata: str, dag: str, uri: str) -> None:
        self._metadata = metadata
        self._names = {"dag": dag, "uri": uri}

    def stored_and_told(self) -> tuple[int, int]:
        """How many events the asset had, and how many of them a run of the Dag was told."""
        stored, told = self._row(EVENTS)
        return stored, told

    def records(self) -> int:
        """How many records its events count, all together."""
        return int(self._row(COUNTED)[0])

    def is_watched(self) -> bool:
        return bool(self._row(WATCHED)[0])

    def stored_by(self, outbox: Outbox) -> None:
        """Wait until something that is stashed now has had an event."""
        before, _ = self.stored_and_told()
        outbox.stash(10)
        wait_until(lambda: self.stored_and_told()[0] > before, doing=lambda: f"an event after {before}")

    def wait_until_all_are_told(self) -> None:
        wait_until(lambda: len({*self.stored_and_told()}) == 1, doing=lambda: f"stored, told: {self.stored_and_told()}")

    def _row(self, statement: str) -> tuple[Any, ...]:
        with psycopg.connect(self._metadata) as connection:
            [row] = connection.execute(statement.encode(), self._names)
        return row
