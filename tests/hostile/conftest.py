"""Outboxes in which innocents meet one hostile thing, on the session's servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile.innocents import Innocents
from support.harvesting import make_outbox

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka

MODES = {"single": {}, "atomic": {"atomic": True}, "at least once": {"delivery": "at_least_once"}}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """How the outbox is harvested; a test that is about one mode only names it by a parametrisation of its own."""
    return str(request.param)


@pytest.fixture
def innocents(mode: str, database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Innocents:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", **MODES[mode])
    return Innocents(outbox, tmp_path / "outbox.yaml")
