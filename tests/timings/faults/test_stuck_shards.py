"""How long a shard that Kafka does not answer delays another one of the same process."""

from __future__ import annotations

from statistics import median

import psycopg
import pytest
from faults.frames import Api, Request
from faults.late import QUICK, LateScene
from faults.treatments import Drop, Treatment
from support.sharding import LED, delays, divided, keys_of

from airflow_outbox import OutboxRecord, stash

pytestmark = pytest.mark.timed

SINGLES = 10


def test_a_shard_whose_topic_is_stuck_delays_another_by_less_than_a_batch(late_scene: LateScene) -> None:
    """A batch of the stuck one takes as long as Kafka's client waits."""
    outbox = late_scene.outbox
    divided(outbox, 2)
    late_scene.member(limits=QUICK)
    late_scene.wait_until(lambda: outbox.query(LED) == [(2,)])

    def rule(request: Request) -> Treatment | None:
        is_of_first = (request.transactional_id or "").endswith(".0.0")
        return Drop() if request.api == Api.PRODUCE and is_of_first else None

    fault = late_scene.frames.mistreat(rule)
    [stuck] = keys_of(0, 2, outbox.topic, count=1)
    with psycopg.connect(outbox.database) as connection:
        stash(connection, [OutboxRecord(outbox.topic, stuck, str(number)) for number in range(20)])
    late_scene.wait_until(fault.struck.is_set)
    any_left = f"SELECT FROM outbox WHERE kafka_key = '{stuck}' LIMIT 1"
    found = delays(outbox, while_any_of=any_left, most=SINGLES)
    assert len(found) == SINGLES, "it was stuck all the while"
    assert median(found) < QUICK["delivery_timeout"] / 2, found
