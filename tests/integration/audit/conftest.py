"""An outbox with an archive for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.archiving import Archived, make_archived

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka


@pytest.fixture
def archived(database: str, kafka: EmbeddedKafka, topic_prefix: str, tmp_path: Path) -> Archived:
    return make_archived(database, bootstrap=kafka.bootstrap, topic=f"{topic_prefix}orders", folder=tmp_path)
