"""The harvesting process while nobody reads what it tells: its triggerer has been stopped, or is busy."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress

from support.harvesting import PATIENCE, REGULAR_EVENTS, Outbox, wait_until

from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.supervised_child import COMMAND


def test_a_supervisor_that_does_not_read_does_not_stop_the_harvest(outbox: Outbox) -> None:
    output, its_output = os.pipe()
    os.set_blocking(its_output, False)
    with suppress(BlockingIOError):
        while True:
            os.write(its_output, b"\n" * 4096)
    os.set_blocking(its_output, True)
    config = {"data_source": outbox.database, "kafka": {"bootstrap.servers": outbox.bootstrap}}
    assert HarvestConfig.validated(config, source="test")
    outbox.stash(1000)  # before: it ends as soon as there is nothing
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=its_output, stderr=subprocess.STDOUT, text=True
    ) as process:
        os.close(its_output)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"config": config, "until": "drained"}) + "\n")
        process.stdin.flush()
        try:
            wait_until(lambda: outbox.left() == 0, doing="the harvest")
            with open(output) as lines:
                events = [json.loads(line) for line in lines if line.strip()]
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    told = [event["event"] for event in events if event["event"] not in REGULAR_EVENTS]
    if not {"stood_by", "error"} & {*told}:  # a busy machine may unseat it for a moment, or let its clients complain
        assert told == ["started", "elected", "view", "took_over", "ended"]
    assert sum(sum(event["topics"].values()) for event in events if event["event"] == "progress") == 1000
