"""The basis of the defence against late requests, tried with the librdkafka that is installed: how soon after a
request of a transaction its second copy may follow, when the connection breaks or no answer comes.

A commit that took less than that was asked for once only. The bound holds for EndTxn, the one request whose late copy
can do harm, and for Produce. It is `retry.backoff.ms`, at most `retry.backoff.max.ms`, and 20% less by chance.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from faults.frames import Api, of
from faults.late import FrameServers
from faults.treatments import Cut, Drop, Treatment
from support.harvesting import PATIENCE

pytestmark = pytest.mark.timed

BACKOFF, LEAST = 0.5, 0.8
"""Seconds, and what chance leaves of them."""
ADDING = 0.5
"""Seconds after which librdkafka adds partitions to a transaction again: a constant of its own."""
SOON = 0.3
"""Below every pause that librdkafka makes before it tries again."""
ROUNDS = 3
NO_ANSWER = {"socket.timeout.ms": 1000, "transaction.timeout.ms": 15_000}

BREAKS: list[tuple[str, Treatment, dict[str, Any]]] = [
    ("cut before the request", Cut(answered=False), {}),
    ("cut before the answer", Cut(answered=True), {}),
    ("never answered", Drop(), NO_ANSWER),
]
breaks = pytest.mark.parametrize(
    ("treatment", "settings"), [case[1:] for case in BREAKS], ids=[case[0] for case in BREAKS]
)


@pytest.fixture
def topic(frame_servers: FrameServers) -> Iterator[str]:
    name = f"plain-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": frame_servers.kafka.bootstrap})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result()
    yield name
    frame_servers.restore()


class StruckProducer:
    """A producer that has made a transaction before the one that is struck."""

    def __init__(self, servers: FrameServers, topic: str, **settings: Any) -> None:
        self._servers = servers
        self._topic = topic
        self._id = f"{topic}-{uuid.uuid4().hex[:12]}"
        milliseconds = int(BACKOFF * 1000)
        self._producer = Producer(
            {
                "bootstrap.servers": servers.bootstrap,
                "transactional.id": self._id,
                "linger.ms": 0,
                "log_level": 0,
                "retry.backoff.ms": milliseconds,
                "retry.backoff.max.ms": milliseconds,
                **settings,
            }
        )
        for _ in range(2):
            self._producer.list_topics("?", 5)

    def gap(
        self, api: Api, treatment: Treatment, *, meanwhile: Callable[[StruckProducer], None] | None = None
    ) -> float:
        """How long after the first copy of a request of that kind, which is so treated, the second one comes. Just
        before that happens to the first one, `meanwhile` is called.
        """
        if api is not Api.INIT_PRODUCER_ID:
            self._producer.init_transactions(PATIENCE)
            self._transact()
        time.sleep(0.3)  # its connections are older than the pause before a new one
        fault = self._servers.frames.strike(api, treatment, where=lambda request: request.transactional_id == self._id)
        if meanwhile is not None:
            self._servers.frames.on_strike = lambda: meanwhile(self)
        if api is Api.INIT_PRODUCER_ID:
            self._producer.init_transactions(PATIENCE)
        else:
            self._transact()
        [strike] = fault.strikes
        copies = of(self._servers.frames.seen, api, self._id)
        return copies[copies.index(strike.request) + 1].at - strike.request.at

    def produce(self, partition: int) -> None:
        self._producer.produce(self._topic, b"", partition=partition)

    def _transact(self) -> None:
        self._producer.begin_transaction()
        self.produce(0)
        assert self._producer.flush(PATIENCE) == 0
        self._producer.commit_transaction(PATIENCE)


def gaps(servers: FrameServers, topic: str, api: Api, treatment: Treatment, **settings: Any) -> list[float]:
    """The gaps of several clients, all at once."""

    def one(_: int) -> float:
        return StruckProducer(servers, topic, **settings).gap(api, treatment)

    with ThreadPoolExecutor(ROUNDS) as pool:
        return list(pool.map(one, range(ROUNDS)))


@breaks
@pytest.mark.parametrize("api", [Api.END, Api.PRODUCE], ids=["end", "produce"])
def test_the_second_copy_waits_for_the_backoff(
    frame_servers: FrameServers, topic: str, api: Api, treatment: Treatment, settings: dict[str, Any]
) -> None:
    found = gaps(frame_servers, topic, api, treatment, **settings)
    least = LEAST * BACKOFF + settings.get("socket.timeout.ms", 0) / 1000
    assert min(found) >= least, found


@pytest.mark.parametrize("api", [Api.END, Api.PRODUCE], ids=["end", "produce"])
def test_the_largest_backoff_counts_where_it_is_less(frame_servers: FrameServers, topic: str, api: Api) -> None:
    """Whoever raises `retry.backoff.ms` alone gains nothing."""
    settings = {"retry.backoff.ms": 2000, "retry.backoff.max.ms": int(BACKOFF * 1000)}
    found = gaps(frame_servers, topic, api, Cut(answered=False), **settings)
    assert all(BACKOFF <= gap < LEAST * 2 for gap in found), found


@breaks
def test_partitions_are_added_again_after_half_a_second(
    frame_servers: FrameServers, topic: str, treatment: Treatment, settings: dict[str, Any]
) -> None:
    found = gaps(frame_servers, topic, Api.ADD_PARTITIONS, treatment, **settings)
    assert min(found) >= ADDING, found


def test_they_may_be_added_again_at_once(frame_servers: FrameServers, topic: str) -> None:
    """When the transaction gets another partition just before the connection breaks. So how long a transaction took
    does not tell whether its partitions were added twice; a late copy of that does no harm.
    """
    client = StruckProducer(frame_servers, topic)
    assert client.gap(Api.ADD_PARTITIONS, Cut(answered=False), meanwhile=lambda client: client.produce(1)) < SOON


def test_a_producer_begins_again_at_once(frame_servers: FrameServers, topic: str) -> None:
    """As soon as it is connected. A late copy fences the producer, which costs a view."""
    found = gaps(frame_servers, topic, Api.INIT_PRODUCER_ID, Cut(answered=False), **{"reconnect.backoff.ms": 10})
    assert max(found) < SOON, found
