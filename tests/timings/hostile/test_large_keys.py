"""Large keys take little memory, in outboxes whose keys are `text` or `bytea`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile.conftest import MODES
from hostile.innocents import Innocents
from hostile.large_keys import ABOVE_ALL_RECORDS, ORDINARY, PARKED, written
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

pytestmark = pytest.mark.long


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


def test_large_keys_take_little_memory(innocents: Innocents, key_type: str) -> None:
    with innocents.harvested():
        innocents.around(written(key_type, ABOVE_ALL_RECORDS))
        assert innocents.outbox.query(PARKED) == [(53, 51, "too_large")]
        innocents.around(written(key_type, ORDINARY))
        assert innocents.outbox.query(PARKED) == [(353, 351, "too_large")]
        innocents.stand(named=None)
        innocents.stay_small()
    with innocents.harvested():  # its lanes are read
        innocents.outbox.query("UPDATE outbox_parked SET requested = 'retry' RETURNING id")
        innocents.wait_until(lambda: is_answered(innocents), "not answered")
        innocents.around("SELECT 1")
        innocents.stand(named=None)
        innocents.stay_small()
        innocents.outbox.query("UPDATE outbox_parked SET requested = 'discard' RETURNING id")
        innocents.wait_until(lambda: is_discarded(innocents), "not discarded")
        innocents.stand(named=None)
        innocents.stay_small()


def is_answered(innocents: Innocents) -> bool:
    return innocents.outbox.query("SELECT count(*) FROM outbox_parked WHERE requested IS NOT NULL") == [(0,)]


def is_discarded(innocents: Innocents) -> bool:
    return innocents.outbox.query("SELECT count(*) FROM outbox_parked WHERE discarded_at IS NULL") == [(0,)]
