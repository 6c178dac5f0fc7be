"""The actions of somebody who finds parked records, and the checks against doing too much."""

from __future__ import annotations

import json
from collections.abc import Callable
from secrets import token_hex
from typing import Any

import psycopg
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from playwright.sync_api import expect
from support.browser import Visit
from support.harvesting import PATIENCE, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.flights import TOPICS

from .conftest import KEY, Demo
from .test_looking import serious

PROBE = "probe"
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def parked_of(topic: str) -> str:
    return f"parked?outbox={KEY}&topic={topic}"


def too_large(topic: str, count: int) -> list[OutboxRecord]:
    return [OutboxRecord(topic, f"N{number}", noise()) for number in range(count)]


def noise() -> str:
    """More than a topic with 1,000 bytes takes, however compressed."""
    return token_hex(1_500)


def allow(demo: Demo, topic: str, *, bytes: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    kafka = {"bootstrap.servers": demo.kafka.bootstrap}
    admin = AdminClient(kafka)
    admin.incremental_alter_configs([resource])[resource].result()
    wait_until(lambda: takes(kafka, topic, noise()))  # the broker hears of it later


def takes(kafka: dict[str, Any], topic: str, value: str) -> bool:
    """Whether a topic takes such a record, which it has then."""
    errors: list[KafkaError | None] = []
    producer = Producer(kafka)
    producer.produce(topic, value, PROBE, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(PATIENCE) == 0
    return errors == [None]


def test_a_retry_frees_what_is_parked(visit: Callable[..., Visit], demo: Demo) -> None:
    topic = "flights.small"
    demo.make_topic(topic, **{"max.message.bytes": "1000"})
    demo.park(*too_large(topic, 2))
    visitor = visit("user")
    frame = visitor.open_framed(f"one?outbox={KEY}")
    frame.get_by_role("navigation", name="This outbox").get_by_role("link", name="Parked records").click()
    frame.locator("input[name=topic]").fill(topic)
    frame.get_by_role("button", name="Filter").click()
    expect(frame.get_by_text("2 records match")).to_be_visible()
    expect(frame.locator("tbody")).to_contain_text("too large")
    allow(demo, topic, bytes=100_000)
    frame.get_by_role("link", name="Retry all that match…").click()
    dialog = frame.get_by_role("dialog")
    dialog.get_by_role("button", name="Retry 2 records").click()
    expect(dialog).to_contain_text("The leader tries 2 records again")
    dialog.get_by_role("link", name="Close").click()
    expect(frame.get_by_role("heading", name="No record matches")).to_be_visible()
    assert demo.parked(topic) == []
    assert demo.keys_in(topic) == {"N0", "N1", PROBE}
    assert visitor.problems == []


def test_a_discard_asks_first_and_says_how_many(visit: Callable[..., Visit], demo: Demo) -> None:
    topic = "flights.discarded"
    demo.make_topic(topic, **{"max.message.bytes": "1000"})
    demo.park(*too_large(topic, 3))
    visitor = visit("op")
    frame = visitor.open_framed(parked_of(topic))
    dialog = frame.get_by_role("dialog")

    frame.get_by_role("link", name="Discard all that match…").click()
    expect(dialog.get_by_role("heading")).to_have_text("Discard 3 records?")
    dialog.get_by_role("link", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert len(demo.parked(topic)) == 3

    frame.get_by_role("link", name="Discard all that match…").click()
    dialog.get_by_role("button", name="Discard 3 records").click()
    assert dialog.get_by_label("Reason").evaluate("field => field.matches(':invalid')")  # none without a reason
    assert len(demo.parked(topic)) == 3
    dialog.get_by_label("Reason").fill("flights of a test")
    visitor.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("The leader discards 3 records")
    dialog.get_by_role("link", name="Close").click()
    expect(frame.get_by_role("heading", name="No record matches")).to_be_visible()

    frame.get_by_role("link", name="Discarded", exact=True).click()
    expect(frame.locator("tbody tr")).to_have_count(3)
    frame.get_by_role("link", name="Trail").click()
    newest = frame.locator("tbody tr").first
    for text in ("discard", topic, "op", "flights of a test"):
        expect(newest).to_contain_text(text)
    assert visitor.problems == []


def test_a_pause_is_seen_and_ended(visit: Callable[..., Visit]) -> None:
    frame = visit("admin").open_framed(f"one?outbox={KEY}")
    badge, dialog = frame.locator(".verdict .badge"), frame.get_by_role("dialog")
    for wanted in ("Pause", "Resume"):
        frame.get_by_role("navigation", name="This outbox").get_by_role("link", name=f"{wanted}…").click()
        dialog.get_by_role("button", name=wanted).click()
        dialog.get_by_role("link", name="Close").click()
        if wanted == "Pause":
            expect(badge).to_have_text("PAUSED")
    expect(badge).not_to_have_text("PAUSED")


def test_a_viewer_is_told_what_it_would_take(visit: Callable[..., Visit], demo: Demo) -> None:
    topic = "flights.viewed"
    demo.make_topic(topic, **{"max.message.bytes": "1000"})
    [number] = demo.park(OutboxRecord(topic, "N-secret-key", f"secret value {noise()}"))
    visitor = visit("viewer")
    refusal = "Only somebody who may edit every Dag that harvests this outbox may do that: outbox_harvest."
    frame = visitor.open_framed("")
    for path in (parked_of(topic), f"record?outbox={KEY}&number={number}"):
        visitor.go(frame, path)
        expect(frame.get_by_text(refusal).first).to_be_visible()
        expect(frame.locator("[data-ask]")).to_have_count(0)
        assert "secret" not in frame.content()
    alone = visitor.open_alone(f"ask?what=discard&outbox={KEY}&topic={topic}")
    expect(alone.get_by_role("heading")).to_have_text("Not allowed")
    expect(alone.get_by_text(refusal)).to_be_visible()


def test_markup_is_shown_as_text(visit: Callable[..., Visit], demo: Demo) -> None:
    topic = "flights.hostile"
    demo.make_topic(topic, **{"max.message.bytes": "1000"})
    value = json.dumps({"text": MARKUP, "long": noise()})
    [number] = demo.park(OutboxRecord(topic, MARKUP, value, {MARKUP: MARKUP}))
    visitor = visit()
    asked: list[str] = []
    visitor.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    frame = visitor.open_framed(parked_of(topic))
    expect(frame.locator("tbody")).to_contain_text(MARKUP[:40])
    visitor.go(frame, f"record?outbox={KEY}&number={number}")
    for part in ("Key", "Headers", "Value"):
        shown = frame.locator("section", has=frame.get_by_role("heading", name=part))
        expect(shown).to_contain_text(MARKUP)
    assert frame.locator("main img, main script").count() == 0
    frame.get_by_role("link", name="Discard its key…").click()
    expect(frame.get_by_role("dialog")).to_contain_text(MARKUP)
    assert frame.locator("dialog img, dialog script").count() == 0
    assert asked == []
    assert visitor.problems == []


def test_what_postgres_keeps_is_seen_until_nothing_holds_it(visit: Callable[..., Visit], demo: Demo) -> None:
    with psycopg.connect(demo.outbox.database) as connection:
        stash(connection, [OutboxRecord(TOPICS[0], "N-held", "1")])
        connection.execute(
            "CREATE TABLE mail (event BIGINT CONSTRAINT mail_event REFERENCES outbox);"
            "INSERT INTO mail SELECT id FROM outbox WHERE kafka_key = 'N-held'"
        )
    visitor = visit("user")
    frame = visitor.open_framed(f"parked?outbox={KEY}&cause=any")  # where the verdict's link leads
    kept = frame.locator("[data-region=undeleted]")
    expect(kept).to_contain_text("N-held")
    expect(kept).to_contain_text("mail_event")
    assert serious(frame) == []
    demo.outbox.query("DROP TABLE mail")
    expect(kept).to_have_text("")
    assert visitor.problems == []


def test_a_backup_is_detached_and_attached_again(visit: Callable[..., Visit], west_is_a_backup: None) -> None:
    visitor = visit("user")
    frame = visitor.open_framed("one?outbox=postgres_default:clustered")
    west, dialog = frame.locator('tr[data-key="cluster west"]'), frame.get_by_role("dialog")
    west.get_by_role("link", name="Detach west…").click()
    expect(dialog.get_by_role("heading")).to_have_text("Go on without west?")
    dialog.get_by_label("Reason").fill("a storm")
    dialog.get_by_role("button", name="Detach").click()
    expect(dialog).to_contain_text("Postgres keeps what it misses")
    dialog.get_by_role("link", name="Close").click()
    expect(west).to_contain_text("A storm")
    west.get_by_role("link", name="Attach west…").click()
    dialog.get_by_label("Accept batches that it has alone").check()
    dialog.get_by_role("button", name="Attach").click()
    expect(dialog).to_contain_text("The leader publishes to west")
    dialog.get_by_role("link", name="Close").click()
    expect(west).to_contain_text("owed, to be attached")
    assert visitor.problems == []
