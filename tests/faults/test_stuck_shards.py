"""One process leads two shards, and Kafka does not answer what it sends for one of them: the other one goes on."""

from __future__ import annotations

import psycopg
from faults.frames import Api, Request
from faults.late import LateScene
from faults.treatments import Hold, Treatment
from support.harvesting import CALM
from support.sharding import LED, divided, keys_of

from airflow_outbox import OutboxRecord, stash

SINGLES, STUCK = 10, 20
LONG = {**CALM, "delivery_timeout": 600, "transaction_timeout": 600}
"""Limits by which nothing is given up while the test waits."""


def test_a_shard_whose_topic_is_stuck_does_not_hold_up_another(late_scene: LateScene) -> None:
    outbox = late_scene.outbox
    divided(outbox, 2)
    late_scene.member(limits=LONG)
    late_scene.wait_until(lambda: outbox.query(LED) == [(2,)])

    def rule(request: Request) -> Treatment | None:
        is_of_first = (request.transactional_id or "").endswith(".0.0")
        return Hold() if request.api == Api.PRODUCE and is_of_first else None

    fault = late_scene.frames.mistreat(rule)
    [stuck], [free] = (keys_of(shard, 2, outbox.topic, count=1) for shard in (0, 1))
    with psycopg.connect(outbox.database) as connection:
        stash(connection, [OutboxRecord(outbox.topic, stuck, str(number)) for number in range(STUCK)])
    late_scene.wait_until(fault.struck.is_set)
    for number in range(SINGLES):
        with psycopg.connect(outbox.database) as connection:
            stash(connection, OutboxRecord(outbox.topic, free, str(number)))
        late_scene.wait_until(lambda: outbox.query("SELECT count(*) FROM outbox") == [(STUCK,)])
    late_scene.frames.heal()
    late_scene.wait_until(lambda: outbox.left() == 0)
    published = [message.value() for message in outbox.committed() if message.key() == stuck.encode()]
    assert published == [str(number).encode() for number in range(STUCK)]
