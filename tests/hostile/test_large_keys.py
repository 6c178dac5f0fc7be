"""Keys of any size, in outboxes whose keys are `text` or `bytea`: each can be parked."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile.conftest import MODES
from hostile.innocents import Innocents
from hostile.large_keys import ABOVE_AN_INDEX_ROW, PARKED, written
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka


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


@pytest.mark.long(mode="atomic")
def test_a_key_that_no_index_takes_is_parked(innocents: Innocents, key_type: str) -> None:
    with innocents.harvested():
        innocents.around(written(key_type, ABOVE_AN_INDEX_ROW))
        innocents.wait_until(lambda: innocents.outbox.query(PARKED) == [(20, 20, "topic_name")], "they are not parked")
        innocents.command("parked", "retry", "--all")
        innocents.around("SELECT 1")
        innocents.stand(named="no such topic")
