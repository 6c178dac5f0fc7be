"""A leader of which something holds one thread up, such as a debugger or a disk: another member leads."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from hostile import held_up
from hostile.innocents import Innocents
from support.harvesting import CHILD, Process


@pytest.mark.parametrize(
    ("thread", "mode"),
    [
        ("loop", "single"),
        ("loop", "at least once"),
        ("outbox-publish", "single"),
        ("outbox-publish", "atomic"),
        ("outbox-deliveries", "at least once"),
        ("outbox-purge", "single"),
        ("outbox-purge", "at least once"),
        ("outbox-mark", "single"),
        ("outbox-mark", "at least once"),
    ],
)
def test_another_member_leads_while_the_leader_is_held_up(innocents: Innocents, tmp_path: Path, thread: str) -> None:
    file = tmp_path / "hold"
    with innocents.harvested(command=[sys.executable, held_up.__file__, str(file), thread]) as leader:
        other = Process(CHILD, first_line={"config": innocents.outbox.settings})
        try:
            innocents.wait_until(lambda: bool(other.newest_progress), "the other one has not begun")
            file.touch()
            leader.popen.send_signal(signal.SIGUSR1)
            innocents.write()
            innocents.wait_until(lambda: other.newest_progress["standing"] == "leading", "nobody else leads")
            innocents.around(lambda: None)
            file.unlink()
            innocents.wait_until(
                lambda: any("held up" in event.get("reason", "") for event in leader.events),
                "it does not say why it stands by",
            )
            innocents.around(lambda: None)
        finally:
            other.end()
