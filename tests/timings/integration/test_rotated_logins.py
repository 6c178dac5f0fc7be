"""How soon a harvest goes on after the new password is in its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.harvesting import COMMAND, Outbox, Process, wait_until
from support.logins import RotatedLogin, rotated_login
from timings.faults.best import best

pytestmark = pytest.mark.timed

PUBLISHED_WITHIN = 15


@pytest.fixture
def login(outbox: Outbox) -> Iterator[RotatedLogin]:
    with rotated_login(outbox.database) as login:
        yield login


def test_it_publishes_within_fifteen_seconds(outbox: Outbox, login: RotatedLogin, tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"

    def write() -> None:
        file.write_text(yaml.safe_dump({**outbox.settings, "data_source": login.data_source}))

    write()
    process = Process([*COMMAND, "harvest", "-f", str(file)])

    def seconds() -> float:
        outbox.stash(10)
        wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))
        login.rotate()
        seen = len(process.events)
        wait_until(lambda: any(event["event"] == "unreached" for event in process.events[seen:]))
        outbox.stash(10)
        write()
        return wait_until(lambda: outbox.left() == 0, doing=lambda: str(process.events))

    try:
        best(seconds, within=PUBLISHED_WITHIN)
    finally:
        process.end()
