"""OutboxPublishedSensor and its trigger, and what assets are told: all that needs no server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import DAG
from airflow.sdk.definitions.asset import Asset

from airflow_outbox.assets import create_asset, outbox_asset, sanitize_uri, topic_asset
from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.sensors.published import NotPublishedError, OutboxPublishedSensor
from airflow_outbox.tickets.waiters import Account
from airflow_outbox.tickets.watermarks import Watermarks
from airflow_outbox.triggers.asset_events import Position, position_key, publication
from airflow_outbox.triggers.published import OutboxPublishedTrigger
from airflow_outbox.triggers.watermark import OutboxWatermarkTrigger
from airflow_outbox.values.records import Snapshot

OUTBOX_ID = UUID(int=7)
TICKET = f"{OUTBOX_ID}/1/900"


def account(batch: int, *, incarnation: int = 1, **topics: int) -> Account:
    shards = (Snapshot.parse("100:100:"),)
    return Account(Watermarks(OUTBOX_ID, incarnation, "exactly_once", shards), batch, topics)


@pytest.mark.parametrize(
    "trigger",
    [
        OutboxPublishedTrigger(ticket=TICKET, postgres_conn_id="p", outbox="s.o"),
        OutboxWatermarkTrigger(postgres_conn_id="p", outbox="s.o", topics=["t"], asset="kafka://k/t"),
    ],
)
def test_a_trigger_is_the_same_after_a_journey_through_the_database(trigger: Any) -> None:
    path, arguments = trigger.serialize()
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    assert type(trigger)(**arguments).serialize() == (path, arguments)


def test_what_can_not_be_right_fails() -> None:
    with pytest.raises(ConfigurationError, match="never in a worker"):
        OutboxPublishedSensor(task_id="wait", ticket=TICKET, deferrable=False)
    with pytest.raises(NotPublishedError, match="not a ticket: 'None'"):
        OutboxPublishedSensor(task_id="wait", ticket=None).execute({})


@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
@pytest.mark.parametrize(("ticket", "why"), [("no ticket", "not a ticket"), (TICKET, "missing")])
def test_what_fails_before_it_waits_is_skipped_where_that_is_wanted(option: str, ticket: str, why: str) -> None:
    sensor = OutboxPublishedSensor(task_id="wait", ticket=ticket, postgres_conn_id="missing", **{option: True})
    with pytest.raises(AirflowSkipException, match=why):
        sensor.execute({})


def test_the_result_is_the_ticket_and_a_failure_says_why() -> None:
    with DAG("d"):
        sensor = OutboxPublishedSensor(task_id="wait", ticket="{{ params.ticket }}")
    sensor.render_template_fields({"params": {"ticket": TICKET}})
    assert sensor.ticket == TICKET
    assert sensor.execute_complete({}, {"status": "published", "ticket": TICKET}) == TICKET
    with pytest.raises(OutboxError, match="rolled back"):
        sensor.execute_complete({}, {"status": "failed", "error": "it was rolled back"})


async def test_a_trigger_that_can_not_look_fails() -> None:
    (event,) = [event async for event in OutboxPublishedTrigger(ticket=TICKET, postgres_conn_id="missing").run()]
    assert event.payload["status"] == "failed"
    assert "missing" in event.payload["error"]


def test_an_event_is_of_what_was_published_since_the_last_one() -> None:
    before = Position.of(account(3, a=5, b=1), None)
    now = account(7, a=9, b=1, c=2)
    payload = publication("o", now, Position.of(now, None), before)
    assert payload == {
        "outbox": "o",
        "outbox_id": str(OUTBOX_ID),
        "incarnation": 1,
        "watermark": ["100:100:"],
        "batches": [4, 7],
        "topics": {"a": 4, "c": 2},
        "published": 6,
        "totals": {"a": 9, "c": 2},
    }


def test_there_is_no_event_of_nothing_and_none_of_other_topics() -> None:
    now = account(7, a=9, b=2)
    assert publication("o", now, Position.of(now, None), Position.of(now, None)) is None
    only_b = Position.of(account(3, a=5, b=2), ["b"])
    assert publication("o", now, Position.of(now, ["b"]), only_b) is None


def test_a_new_incarnation_counts_from_nothing() -> None:
    now = account(12, incarnation=2, a=3)
    payload = publication("o", now, Position.of(now, None), Position.of(account(11, a=500), None))
    assert payload is not None
    assert (payload["topics"], payload["batches"], payload["incarnation"]) == ({"a": 3}, [12, 12], 2)


@pytest.mark.parametrize("stored", [None, 5, "x", {}, {"incarnation": 1, "batch": "x", "topics": {}}])
def test_what_is_no_position_is_none(stored: Any) -> None:
    assert Position.read(stored) is None


def test_a_position_is_the_same_after_a_journey_through_the_store() -> None:
    position = Position.of(account(3, a=5), None)
    assert Position.read(position.as_json()) == position


class Store(dict[str, Any]):
    """An asset's state store."""

    async def aget(self, key: str) -> Any:
        return self.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self[key] = value


async def test_a_trigger_goes_on_where_its_asset_was_told() -> None:
    store = Store()

    def trigger() -> OutboxWatermarkTrigger:
        made = OutboxWatermarkTrigger()
        made.asset_state_store = store  # type: ignore[assignment]
        return made

    first = trigger()
    told = await first._news(account(1, a=5))
    assert told is not None
    assert (told["topics"], told["totals"], told["batches"]) == ({"a": 5}, {"a": 5}, [1, 1])
    assert await first._news(account(1, a=5)) is None
    told = await first._news(account(2, a=6))
    assert told is not None
    assert (told["topics"], told["totals"], told["batches"]) == ({"a": 1}, {"a": 6}, [2, 2])

    # Only its first event has been stored.
    await store.aset(position_key(OUTBOX_ID), Position.of(account(1, a=5), None).as_json())
    again = await trigger()._news(account(3, a=8))
    assert again is not None
    assert (again["topics"], again["batches"]) == ({"a": 3}, [2, 3])


def test_a_position_after_an_event() -> None:
    before, then = account(3, a=5, b=1), account(7, a=9, b=1, c=2)
    payload = publication("o", then, Position.of(then, None), Position.of(before, None))
    assert payload is not None
    after = Position.of(before, None).after(payload)
    assert after == Position.of(then, None)
    assert after.after(payload) == after, "the event of another triggerer"


def test_a_position_waits_before_a_gap() -> None:
    """The event of `then` went nowhere."""
    before, then, later = account(3, a=5), account(7, a=9), account(9, a=10)
    payload = publication("o", later, Position.of(later, None), Position.of(then, None))
    assert payload is not None
    assert Position.of(before, None).after(payload) == Position.of(before, None)


def test_a_position_follows_into_a_new_incarnation_and_not_back() -> None:
    old, new = Position.of(account(11, a=500), None), account(12, incarnation=2, a=3)
    payload = publication("o", new, Position.of(new, None), old)
    assert payload is not None
    assert old.after(payload) == Position.of(new, None)
    late = publication("o", account(12, a=501), Position.of(account(12, a=501), None), old)
    assert late is not None
    assert Position.of(new, None).after(late) == Position.of(new, None)


def test_uris_have_one_form() -> None:
    assert sanitize_uri(urlsplit("outbox://db/shop/public.outbox")).geturl() == "outbox://db:5432/shop/public.outbox"
    for wrong in ("outbox:///shop/outbox", "outbox://db/shop", "outbox://db/shop/a/b"):
        with pytest.raises(ValueError, match="outbox://"):
            sanitize_uri(urlsplit(wrong))
    assert create_asset(host="db", database="shop").uri == "outbox://db:5432/shop/outbox"


def test_assets_are_watched_each_by_a_trigger_of_its_own() -> None:
    of_topic = topic_asset("kafka://broker:9092/orders", postgres_conn_id="p", outbox="o")
    assert of_topic.uri == Asset("kafka://broker:9092/orders").uri
    (watcher,) = of_topic.watchers
    assert watcher.trigger.serialize()[1] == {
        "postgres_conn_id": "p",
        "outbox": "o",
        "topics": ["orders"],
        "asset": "kafka://broker:9092/orders",
    }
    (watcher,) = outbox_asset("outbox://db/shop/outbox").watchers
    assert watcher.trigger.serialize()[1]["topics"] is None
