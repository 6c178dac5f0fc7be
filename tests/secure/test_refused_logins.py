"""A login that Kafka refuses: operators know from Postgres, whether the member runs, or could not start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from secure.broker import SecureKafka
from secure.conftest import MakeOutbox, SecureOutbox, Start
from support.harvesting import wait_until

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State, Verdict

REFUSED = "Kafka refuses the login at"


@pytest.fixture(scope="module")
def secure(server_folder: Path, kafka_classpath: str) -> Iterator[SecureKafka]:
    """A broker of this file's own, which may be stopped."""
    with SecureKafka(server_folder / "refusing", classpath=kafka_classpath) as kafka:
        yield kafka


def look(outbox: SecureOutbox) -> Verdict:
    return read_verdict(HarvestConfig.validated(outbox.settings, source="test"))


def test_the_password_is_changed(make_outbox: MakeOutbox, start: Start) -> None:
    """Connections that are there stay: a restart of the broker ends them."""
    outbox = make_outbox()
    process = start(outbox, child=True)
    wait_until(lambda: look(outbox).state is State.HEALTHY, doing=str(process.events))
    outbox.kafka.add_user(outbox.user, "another")
    outbox.kafka.server.restart()
    looks: list[Verdict] = []

    def is_told() -> bool:
        looks.append(look(outbox))
        return REFUSED in looks[-1].cause

    wait_until(is_told, doing=lambda: str(looks[-1]))
    found = looks[-1]
    assert found.state is State.STALLED
    assert "Check sasl.mechanism, sasl.username and sasl.password" in found.remedy
    outbox.kafka.add_user(outbox.user, "pässword")
    wait_until(lambda: look(outbox).state is State.HEALTHY, doing=str(process.events))


def test_the_new_password_is_read_from_the_file(make_outbox: MakeOutbox, start: Start, tmp_path: Path) -> None:
    outbox = make_outbox()
    process = start(outbox)
    process.wait_for("took_over")
    outbox.kafka.add_user(outbox.user, "another")
    outbox.kafka.server.restart()
    process.wait_for("unreached")
    outbox.stash(10)
    outbox.settings["kafka"] |= outbox.kafka.login(outbox.user, "another")
    (tmp_path / "outbox-0.yaml").write_text(yaml.safe_dump(outbox.settings))
    wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))


def test_a_member_that_could_not_start_has_said_why(make_outbox: MakeOutbox, start: Start) -> None:
    outbox = make_outbox()
    outbox.settings["kafka"]["sasl.password"] = "wrong"
    process = start(outbox, child=True)
    process.ends()
    outbox.query("UPDATE outbox_trouble SET told_at = now() RETURNING 1")  # its end may have taken long
    found = look(outbox)
    assert found.state is State.STALLED
    assert REFUSED in found.cause
    outbox.query("UPDATE outbox_trouble SET told_at = now() - interval '1 min' RETURNING 1")
    found = look(outbox)
    assert found.state is State.NO_LEADER
    assert REFUSED in found.notes[0]
