"""Records that Kafka never takes, and keys that wait behind them, leave the others their speed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg
import pytest
import yaml
from support.harvesting import COMMAND, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka


@dataclass(frozen=True, slots=True)
class Race:
    """Drains of 100,000 records, timed from the leader's view to the empty outbox."""

    outbox: Outbox
    file: Path

    def drain(self, *, poisoned: int = -1, parked_keys: int = 0) -> float:
        """Seconds. Every thousandth record is refused, if its place there is `poisoned`."""
        with psycopg.connect(self.outbox.database, autocommit=True) as connection:
            connection.execute("TRUNCATE outbox, outbox_parked")
            connection.execute(
                """INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values)
                SELECT %s, 'k' || place, 'v', ARRAY['n'], CASE WHEN place %% 1000 <> %s THEN ARRAY['1'] ELSE '{}' END
                FROM generate_series(1, 100000) AS place""",
                (self.outbox.topic, poisoned),
            )
            connection.execute(
                """INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,
                    kafka_header_values, transaction_id, incarnation, cause, reason)
                SELECT -place, now(), %s, 'parked' || place, '{}', '{}', '3', 1, 'headers', 'a test'
                FROM generate_series(1, %s) AS place""",
                (self.outbox.topic, parked_keys),
            )
        process = Process([*COMMAND, "harvest", "-f", str(self.file)])
        try:
            process.wait_for("view")
            began = time.monotonic()
            wait_until(lambda: self.outbox.left() == 0)
            return time.monotonic() - began
        finally:
            process.end()


@pytest.fixture
def race(database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Race:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    path = tmp_path / "race.yaml"
    path.write_text(yaml.safe_dump(outbox.settings))
    race = Race(outbox, path)
    race.drain()  # what is only done once is done
    return race


@pytest.mark.alone
@pytest.mark.long
def test_one_poison_in_a_thousand_and_a_thousand_parked_keys_leave_the_others_their_speed(
    race: Race, is_long: bool
) -> None:
    drains = [(race.drain(), race.drain(poisoned=7), race.drain(parked_keys=1000)) for _ in range(9 if is_long else 3)]
    assert median(poisoned / clean for clean, poisoned, _ in drains) < 2, drains
    # A tenth, by paired medians, on a machine that does nothing else; in the short form there is room for noise.
    assert median(parked / clean for clean, _, parked in drains) < (1.1 if is_long else 1.3), drains
