"""An operator leaves a transaction open, and locks with it: the harvester and `check` say whose they are, and all goes
on when that transaction has ended.
"""

from __future__ import annotations

import psycopg
import pytest
from hostile.innocents import Innocents, strict_json
from support.harvesting import SHORT_SESSION, Process, make_topic

from airflow_outbox import OutboxRecord, stash

LIMITS = {**SHORT_SESSION, "statement_timeout": 3}


def is_told(process: Process, text: str) -> bool:
    return any(text in event["error"] for event in process.events if event["event"] == "error")


@pytest.mark.parametrize("mode", ["single"])
def test_a_lock_of_the_fence_row(innocents: Innocents) -> None:
    forgetful = psycopg.connect(innocents.outbox.database, application_name="forgetful")
    with forgetful, innocents.harvested(limits=LIMITS) as process:
        forgetful.execute("UPDATE outbox_shard SET handover_asked_at = now()")
        innocents.write()
        named = f"the session with process id {forgetful.info.backend_pid} (postgres, forgetful, idle in transaction)"
        innocents.wait_until(lambda: is_told(process, named), "nobody is named")
        assert f"{named} holds locks of outbox_shard" in innocents.command("check", wants=None)
        strict_json(innocents.command("status", "--output", "json"))
        forgetful.rollback()
        innocents.come_out()
        innocents.stand(named=None)
        assert "holds locks" not in innocents.command("check", wants=None)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["single"])
def test_a_lock_of_a_parked_record_that_is_tried_again(innocents: Innocents) -> None:
    outbox, topic = innocents.outbox, innocents.outbox.topic + "-late"
    forgetful = psycopg.connect(outbox.database, application_name="forgetful")
    with forgetful, innocents.harvested(limits=SHORT_SESSION) as process:
        with psycopg.connect(outbox.database) as connection:
            stash(connection, [OutboxRecord(topic, "h", "1")])
        parked = "SELECT count(*) FROM outbox_parked"
        innocents.wait_until(lambda: outbox.query(parked) == [(1,)], "it is not parked")
        outbox.query("UPDATE outbox_parked SET retry_at = clock_timestamp() + interval '3 s' RETURNING 1")
        forgetful.execute("SELECT FROM outbox_parked FOR UPDATE")
        make_topic({"bootstrap.servers": outbox.bootstrap}, topic)
        innocents.write()
        innocents.wait_until(lambda: is_told(process, "waited too long for a lock"), "nobody says it")
        innocents.write()
        named = f"process id {forgetful.info.backend_pid} (postgres, forgetful, idle in transaction)"
        assert f"{named} holds locks of outbox_parked" in innocents.command("check", wants=None)
        forgetful.rollback()
        innocents.come_out()
        innocents.wait_until(lambda: outbox.query(parked) == [(0,)], "it stays parked")
        innocents.around("SELECT 1")
