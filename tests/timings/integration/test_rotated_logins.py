"""How soon the verdict tells that a password was changed, and a harvest goes on after the new one is in its file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.harvesting import COMMAND, Outbox, Process, wait_until
from support.logins import PLACES, RotatedLogin, rotated_login
from support.served import Served
from timings.faults.best import A_LITTLE, best

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.verdict import read_verdict
from airflow_outbox.values.verdict import State, Verdict

pytestmark = pytest.mark.timed

PUBLISHED_WITHIN = 15
KNOWN_WITHIN = 3
LEADERLESS_WITHIN = 6 + 1
"""Seconds: `limits.session_timeout`, and one between two heartbeats."""


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


@pytest.mark.parametrize("place", PLACES[:2])
def test_the_verdict_tells_it_within_three_seconds(
    outbox: Outbox, login: RotatedLogin, tmp_path: Path, place: str
) -> None:
    """Whoever has the old password is told so, also by /healthz; whoever has the new one sees that nobody leads."""
    file = tmp_path / "outbox.yaml"
    refused, leaderless, healthy = list[float](), list[float](), list[float]()

    def write() -> None:
        data_source = login.write(place, tmp_path / "secrets")
        file.write_text(yaml.safe_dump({**outbox.settings, "data_source": data_source}))

    def look(data_source: str) -> Verdict:
        return read_verdict(HarvestConfig.validated({**outbox.settings, "data_source": data_source}, source="test"))

    def is_healthy() -> bool:
        return look(login.data_source).state is State.HEALTHY

    write()
    process = Process([*COMMAND, "harvest", "-f", str(file), "--metrics-port", "0"])
    served = Served(process)

    def seconds() -> float:
        wait_until(is_healthy, doing=lambda: str(process.events))
        wait_until(served.is_healthy, doing=lambda: str(process.events))
        old = login.data_source
        login.rotate()
        refused.append(wait_until(lambda: "Postgres refuses the login" in look(old).cause))
        known = refused[-1] + wait_until(lambda: "Postgres refuses the login" in served.health()[1]["cause"])
        gone = wait_until(lambda: look(login.data_source).state is State.NO_LEADER)
        leaderless.append(known + gone)
        write()
        healthy.append(wait_until(is_healthy, doing=lambda: str(process.events)))
        return known

    try:
        best(seconds, within=KNOWN_WITHIN)
    finally:
        process.end()
    print(f"{refused=} {leaderless=} {healthy=}")
    assert min(refused) <= A_LITTLE, refused
    assert min(leaderless) <= LEADERLESS_WITHIN + A_LITTLE, leaderless
    assert min(healthy) <= PUBLISHED_WITHIN + A_LITTLE, healthy
