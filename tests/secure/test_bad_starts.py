"""A harvester that can't start says why, in a line that says what to do: the command and the child. It waits for no
time-out, unless nothing else tells what is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from click.testing import CliRunner
from psycopg.conninfo import make_conninfo
from secure.conftest import MakeOutbox, SecureOutbox, Start
from support.harvesting import Process

from airflow_outbox.cli import main


def kafka(**settings: str) -> Callable[[SecureOutbox], None]:
    """A change of Kafka settings; `_` stands for a dot."""

    def change(outbox: SecureOutbox) -> None:
        outbox.settings["kafka"] |= {name.replace("_", "."): value for name, value in settings.items()}

    return change


def without_permissions(outbox: SecureOutbox) -> None:
    outbox.kafka.forbid(outbox.user, outbox.acls)


def a_wrong_database_password(outbox: SecureOutbox) -> None:
    outbox.settings["data_source"] = make_conninfo(outbox.database, user="nobody", password="s3cret-5F")


def tls_to_a_plain_listener(outbox: SecureOutbox) -> None:
    outbox.settings["kafka"]["bootstrap.servers"] = outbox.kafka.server.bootstrap


LOGIN = r"Kafka refuses the login at 127\.0\.0\.1:\d+: .*Check sasl\.mechanism, sasl\.username and sasl\.password"
UNREACHED = r"can't reach Kafka at 127\.0\.0\.1:\d+: .*Check bootstrap\.servers and security\.protocol"
SAID_AT_ONCE = {
    "a wrong password": (kafka(sasl_password="s3cret-5F"), LOGIN),
    "an unknown user": (kafka(sasl_username="nobody"), LOGIN),
    "another mechanism": (kafka(sasl_mechanism="SCRAM-SHA-256"), LOGIN),
    "another authority": (
        kafka(ssl_ca_location="/etc/ssl/certs/ca-certificates.crt"),
        r"no TLS connection to Kafka at .*certificate verify failed.*Check security\.protocol and ssl\.ca\.location",
    ),
    "no permissions": (without_permissions, r"Kafka does not allow READ on topic \S+\. `airflow-outbox check --acls"),
    "a wrong database password": (
        a_wrong_database_password,
        "password authentication failed.*Check the data source",
    ),
}
PATIENT = [sys.executable, str(Path(__file__).with_name("patient.py"))]
"""A harvester that waits for an answer of Kafka's for longer than this test waits for its end."""
AT_ONCE = 4  # starts: sixteen would keep a busy machine for long
AFTER_A_WHILE = {
    "no TLS": (kafka(security_protocol="plaintext"), UNREACHED),
    "TLS to a plain listener": (tls_to_a_plain_listener, UNREACHED),
}


def test_what_keeps_it_from_starting_is_said_and_what_to_do(make_outbox: MakeOutbox, start: Start) -> None:
    cases = {**SAID_AT_ONCE, **AFTER_A_WHILE}
    outboxes = {name: make_outbox() for name in cases}
    for name, (change, _) in cases.items():
        change(outboxes[name])

    def ended(case: tuple[str, bool]) -> Process:
        name, child = case
        process = start(outboxes[name], child=child, program=PATIENT if name in SAID_AT_ONCE else None)
        process.ends()
        return process

    each = [(name, child) for name in cases for child in (False, True)]
    with ThreadPoolExecutor(AT_ONCE) as starting:
        processes = dict(zip(each, starting.map(ended, each), strict=True))
    for (name, child), process in processes.items():
        assert process.log is not None
        log = process.log.read_text()
        said = process.wait_for("error", retry_in=None)["error"] if child else log.splitlines()[-1]
        where = f"{name}, {'child' if child else 'command'}: {said}"
        assert process.popen.returncode == 1, where
        assert re.search(cases[name][1], said), where
        assert child or said.startswith("Error: "), where
        assert "s3cret-5F" not in log + str(process.events), where
        assert len(log.splitlines()) < 20, where


def test_the_commands_say_the_same(make_outbox: MakeOutbox, tmp_path: Path) -> None:
    outbox = make_outbox()
    kafka(sasl_password="s3cret-5F")(outbox)
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    for command in ("init", "check"):
        done = CliRunner().invoke(main, [command, "-f", str(file)])
        assert done.exit_code == 1
        assert re.search(LOGIN, done.output)
        assert "s3cret-5F" not in done.output
