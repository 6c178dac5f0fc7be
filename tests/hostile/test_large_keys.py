"""Keys of any size, in outboxes whose keys are `text` or `bytea`: each can be parked, and takes little memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile.conftest import MODES
from hostile.innocents import Innocents
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

INTO = "INSERT INTO outbox (kafka_topic, kafka_key)"
INCOMPRESSIBLE = "(SELECT string_agg(md5(number || '-' || part), '') FROM generate_series(1, 320) AS part)"
ABOVE_AN_INDEX_ROW = f"{INTO} SELECT 'no such topic', {{key}} FROM generate_series(1, 20) AS number", INCOMPRESSIBLE
ABOVE_ALL_RECORDS = (
    f"{INTO} SELECT {{{{topic}}}}, {{key}} FROM unnest(ARRAY(SELECT generate_series(1, 51)) || 1 || 51) AS number",
    "repeat('h', CASE number WHEN 51 THEN 30000000 ELSE 5000000 END) || number",
)
ORDINARY = (
    f"{INTO} SELECT 'to-be-made-' || {{{{topic}}}}, {{key}} FROM generate_series(1, 300) AS number",
    "repeat('h', 900000) || number",
)
SLOW = 300  # seconds: hundreds of megabytes are compressed, moved and hashed
PARKED = "SELECT count(*), count(DISTINCT kafka_key), min(cause) FROM outbox_parked"


@pytest.fixture(params=["text", "bytea"])
def key_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def innocents(
    mode: str, key_type: str, database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path
) -> Innocents:
    outbox = make_outbox(
        database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", key_type=key_type, **MODES[mode]
    )
    return Innocents(outbox, tmp_path / "outbox.yaml")


def written(key_type: str, statement: tuple[str, str]) -> str:
    template, key = statement
    return template.format(key=f"convert_to({key}, 'UTF8')" if key_type == "bytea" else key)


@pytest.mark.long(mode="atomic")
def test_a_key_that_no_index_takes_is_parked(innocents: Innocents, key_type: str) -> None:
    with innocents.harvested():
        innocents.around(written(key_type, ABOVE_AN_INDEX_ROW))
        innocents.wait_until(lambda: innocents.outbox.query(PARKED) == [(20, 20, "topic_name")], "they are not parked")
        innocents.command("parked", "retry", "--all")
        innocents.around("SELECT 1")
        innocents.stand(named="no such topic")


@pytest.mark.long
def test_large_keys_take_little_memory(innocents: Innocents, key_type: str) -> None:
    with innocents.harvested():
        innocents.around(written(key_type, ABOVE_ALL_RECORDS), within=SLOW)
        assert innocents.outbox.query(PARKED) == [(53, 51, "too_large")]
        innocents.around(written(key_type, ORDINARY), within=SLOW)
        assert innocents.outbox.query(PARKED) == [(353, 351, "too_large")]
        innocents.stand(named=None)
    with innocents.harvested():  # its lanes are read
        innocents.outbox.query("UPDATE outbox_parked SET requested = 'retry' RETURNING id")
        innocents.wait_until(lambda: is_answered(innocents), "not answered", within=SLOW)
        innocents.around("SELECT 1")
        innocents.stand(named=None)
        innocents.outbox.query("UPDATE outbox_parked SET requested = 'discard' RETURNING id")
        innocents.wait_until(lambda: is_discarded(innocents), "not discarded", within=SLOW)
        innocents.stand(named=None)


def is_answered(innocents: Innocents) -> bool:
    return innocents.outbox.query("SELECT count(*) FROM outbox_parked WHERE requested IS NOT NULL") == [(0,)]


def is_discarded(innocents: Innocents) -> bool:
    return innocents.outbox.query("SELECT count(*) FROM outbox_parked WHERE discarded_at IS NULL") == [(0,)]
