"""Every command that has used Kafka's client ends with a status of its own, and never by a signal: its threads may be
at work when the process ends.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from secure.conftest import MakeOutbox
from support.harvesting import COMMAND, PATIENCE

STARTS = {"short": 2, "long": 200}
AT_ONCE = 8
"""How many processes start at a time: more than there are processors, so that some are held up anywhere."""
Settings = Mapping[str, Any]


def as_it_is(settings: Settings) -> Settings:
    return settings


def with_kafka(**changes: str) -> Callable[[Settings], Settings]:
    """`_` stands for a dot."""
    other = {name.replace("_", "."): value for name, value in changes.items()}
    return lambda settings: {**settings, "kafka": {**settings["kafka"], **other}}


ANOTHER_AUTHORITY = with_kafka(ssl_ca_location="/etc/ssl/certs/ca-certificates.crt")
REFUSED_LOGIN = with_kafka(sasl_password="wrong")
UNREACHABLE = with_kafka(bootstrap_servers="127.0.0.1:1")


@pytest.mark.parametrize(
    ("command", "change", "status"),
    [
        pytest.param(["harvest"], ANOTHER_AUTHORITY, 1, id="harvest, another authority"),
        pytest.param(["harvest"], REFUSED_LOGIN, 1, id="harvest, refused login"),
        pytest.param(["harvest"], UNREACHABLE, 1, id="harvest, unreachable broker"),
        pytest.param(["harvest", "--until", "drained"], as_it_is, 0, id="harvest"),
        pytest.param(["init"], as_it_is, 0, id="init"),
        pytest.param(["init"], ANOTHER_AUTHORITY, 1, id="init, another authority"),
        pytest.param(["check"], as_it_is, 0, id="check"),
        pytest.param(["check"], REFUSED_LOGIN, 1, id="check, refused login"),
        pytest.param(["status", "--fail-unless-leading"], as_it_is, 3, id="status"),
        pytest.param(["status"], UNREACHABLE, 0, id="status, unreachable broker"),
    ],
)
def test_no_command_ends_by_a_signal(
    request: pytest.FixtureRequest,
    make_outbox: MakeOutbox,
    tmp_path: Path,
    command: list[str],
    change: Callable[[Settings], Settings],
    status: int,
) -> None:
    outbox = make_outbox()
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(dict(change(outbox.settings))))

    def ended(_: int) -> tuple[int, str]:
        program = [*COMMAND, *command, "-f", str(file)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
        return done.returncode, done.stderr[-2000:]

    with ThreadPoolExecutor(AT_ONCE) as starting:
        found = list(starting.map(ended, range(STARTS[request.config.getoption("--faults")])))
    assert [each for each in found if each[0] != status] == []
