"""One outbox of a list: its own configuration, by the name that a process or an operator gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_outbox.cli import main
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.many.choice import of_outbox

LIST = HarvestConfig.validated(
    {
        "data_source": "dbname=none",
        "kafka": {"bootstrap.servers": "none"},
        "outboxes": ["tenant_*.outbox", "outbox"],
        "limits": {"poll_interval": "5ms"},
    },
    source="test",
)


@pytest.mark.parametrize("name", ["tenant_7.outbox", "outbox", "shop.outbox"])
def test_it_has_the_settings_of_the_list(name: str) -> None:
    one = of_outbox(LIST, name)
    assert (one.outbox_table, one.outboxes) == (name, [])
    assert one.limits == LIST.limits
    assert one.limits.model_fields_set == {"poll_interval"}


@pytest.mark.parametrize("name", ["tenant_7.other", '"Tenant_7".outboxes', "orders"])
def test_one_that_the_list_does_not_mean_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not among the outboxes"):
        of_outbox(LIST, name)


def test_an_outbox_by_itself_may_be_exchanged() -> None:
    alone = of_outbox(LIST, "tenant_7.outbox")
    assert of_outbox(alone, "any.table").outbox_table == "any.table"


def test_commands_about_one_outbox_ask_which(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    file.write_text("{data_source: dbname=none, kafka: {bootstrap.servers: none}, outboxes: ['tenant_*.outbox']}")
    groups = (["debezium", "init"], ["debezium", "check"], ["clusters", "status"], ["positions", "run"])
    for command in (["pause"], *groups):
        found = CliRunner().invoke(main, [*command, "-f", str(file)])
        assert found.exit_code == 1
        assert "has many outboxes: tenant_*.outbox. Say by --outbox which one is meant" in found.output, command
    found = CliRunner().invoke(main, ["pause", "-f", str(file), "--outbox", "shop.outbox"])
    assert "shop.outbox is not among the outboxes tenant_*.outbox" in found.output


def test_a_renaming_names_its_outboxes_itself(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    file.write_text("{data_source: host=127.0.0.1 port=1, kafka: {bootstrap.servers: none}, outboxes: ['*.outbox']}")
    found = CliRunner().invoke(main, ["rename", "-f", str(file), "a.outbox", "a.events"])
    assert found.exit_code == 1
    assert "can't connect to Postgres" in found.output
