"""Some outboxes stay at one shard, and every way to ask for more says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from click.testing import CliRunner
from support.harvesting import GOHARVEST_TABLE

from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

WHY: list[tuple[dict[str, Any], str, str]] = [
    ({"delivery": "at_least_once"}, "it is harvested at least once", "delivery: at_least_once needs shards: 1"),
    ({"atomic": True}, "it is atomic, and a source transaction may touch every shard", "atomic needs shards: 1"),
    ({}, "has no column transaction_id", ""),
]


@pytest.mark.parametrize(("settings", "why", "of_settings"), WHY, ids=["at least once", "atomic", "goharvest's table"])
def test_init_reshard_and_settings_say_why(
    database: str, kafka: EmbeddedKafka, tmp_path: Path, settings: dict[str, Any], why: str, of_settings: str
) -> None:
    if not settings:
        with psycopg.connect(database) as connection:
            connection.execute(GOHARVEST_TABLE.format("outbox"))
            init_outbox(connection, OutboxName.parse("outbox"))
    file = tmp_path / "outbox.yaml"
    known = {"data_source": database, "kafka": {"bootstrap.servers": kafka.bootstrap}, **settings}

    def refused(*command: str, **more: Any) -> str:
        file.write_text(yaml.safe_dump({**known, **more}))
        result = CliRunner().invoke(main, [*command, "-f", str(file)])
        assert result.exit_code == 1, result.output
        return " ".join(result.output.split())

    assert why in refused("init", "--shards", "2")
    assert why in refused("reshard", "2")
    assert (of_settings or why) in refused("init", shards=2)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT shards, shards_wanted FROM outbox_state").fetchall() == [(1, None)]
