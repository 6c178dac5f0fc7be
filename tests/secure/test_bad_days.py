"""Bad days: what happens to a harvester that runs, what it says of it, and how it goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from secure.bad_days import (
    BAD_DAYS,
    LIKE_OTHERS,
)
from secure.conftest import MakeOutbox, Start
from secure.disks import Disk
from secure.outliving import outlives_a_broker_whose_disk_is_full, outlives_what_is_mended


@pytest.mark.long  # twelve harvesters and a broker at once: 90 s of a processor
@pytest.mark.usefixtures("roles")
def test_bad_days(
    disks: list[Disk],
    make_outbox: MakeOutbox,
    start: Start,
    database: str,
    server_folder: Path,
    kafka_classpath: str,
    request: pytest.FixtureRequest,
) -> None:
    """All at once, each for an outbox of its own: each has to be watched for a while."""
    with ThreadPoolExecutor(1) as thread:
        broker = thread.submit(outlives_a_broker_whose_disk_is_full, database, server_folder, kafka_classpath, start)
        played = BAD_DAYS.keys() if request.config.getoption("--faults") == "long" else BAD_DAYS.keys() - LIKE_OTHERS
        outlives_what_is_mended({name: BAD_DAYS[name] for name in played}, make_outbox, start, disks)
        broker.result()
