"""Records that only the broker refuses, for a harvester that may not ask for the limits of a topic (DESCRIBE_CONFIGS):
each is found by few terms and parked with the broker's reason, and everything else comes.
"""

from __future__ import annotations

import json
import random

import psycopg
import pytest
from secure.broker import SecureKafka
from secure.conftest import MakeOutbox, SecureOutbox, Start
from support.harvesting import PATIENCE, Process, wait_until

from airflow_outbox import OutboxRecord, stash

LIMIT = 4_000
TERMS = 15
INNOCENTS = 400


def terms(process: Process) -> int:
    """How many terms it has had, but for those after a busy machine has unseated it."""
    return 1 + process.own_views()


def write(outbox: SecureOutbox, *records: tuple[str, int]) -> None:
    """A source transaction: the key and the number of bytes of each record, which no codec makes smaller by half."""
    draw = random.Random(1)
    with psycopg.connect(outbox.database) as connection:
        stash(connection, [OutboxRecord(outbox.topic, key, f"{draw.getrandbits(4 * size):x}") for key, size in records])


@pytest.mark.long(atomic=False)
@pytest.mark.parametrize("atomic", [True, False])
def test_a_record_above_a_limit_that_nobody_knows(
    make_outbox: MakeOutbox, secure: SecureKafka, start: Start, atomic: bool
) -> None:
    """Records that fit are sent together, so their batches have to become smaller, too."""
    outbox = make_outbox()
    outbox.topic = f"{outbox.user}.small"
    secure.make_topic(outbox.topic, partitions=4, config={"max.message.bytes": str(LIMIT)})
    secure.allow(outbox.user, [*outbox.acls, type(outbox.acls[0])("TOPIC", outbox.topic, "WRITE")])
    outbox.settings["atomic"] = atomic
    write(outbox, ("a1", 100), ("a2", 9_900), ("a3", 100))
    for number in range(INNOCENTS):
        write(outbox, (f"k{number}", 300), (f"l{number}", 300))
    write(outbox, ("b1", 100), ("b2", 100), ("b3", 9_900))
    process = start(outbox)
    process.wait_for("view")
    wait_until(lambda: outbox.left() == 0, within=PATIENCE, doing="parking two")
    refused = outbox.query("SELECT kafka_key, cause FROM outbox_parked WHERE cause IS NOT NULL ORDER BY 1")
    assert refused == [("a2", "refused"), ("b3", "refused")]
    held = outbox.query("SELECT kafka_key FROM outbox_parked WHERE cause IS NULL ORDER BY 1")
    assert held == ([("a1",), ("a3",), ("b1",), ("b2",)] if atomic else [])
    seen = [(message.key() or b"").decode() for message in outbox.committed()]
    expected = [f"{lane}{number}" for lane in "kl" for number in range(INNOCENTS)]
    assert sorted(seen) == sorted([*expected, *([] if atomic else ["a1", "a3", "b1", "b2"])])
    assert terms(process) <= TERMS
    for number in range(4):
        write(outbox, *((f"m{number}-{place}", 300) for place in range(INNOCENTS)))
        wait_until(lambda: outbox.left() == 0, within=PATIENCE, doing="publishing more")
    before = terms(process)
    assert before <= TERMS + 4, "batches do not become small enough for the topic"
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        connection.execute("UPDATE outbox_parked SET requested = 'retry'")
    waiting = "SELECT count(*) FROM outbox_parked WHERE requested IS NOT NULL"
    wait_until(lambda: outbox.query(waiting) == [(0,)], within=PATIENCE, doing="refusing them again")
    assert terms(process) - before <= TERMS
    assert outbox.query("SELECT kafka_key FROM outbox_parked WHERE cause IS NOT NULL ORDER BY 1") == [("a2",), ("b3",)]
    print(json.dumps({"terms": before, "retry": terms(process) - before}))
