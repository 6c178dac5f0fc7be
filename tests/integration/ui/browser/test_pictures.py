"""Draws the docs' pictures again: `./dev test tests/integration/ui/browser/test_pictures.py --pictures`.

Look at each of them after that. They show three outboxes whose last day is made up, and whose last minute is real.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from secrets import token_hex

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import Browser, Frame, expect
from support.api_server import ApiServer, as_connection
from support.browser import Visit
from support.harvesting import CHILD, PARTITIONS, Outbox, Process, make_outbox, wait_until

from airflow_outbox import OutboxRecord
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.demo.flights import TOPICS
from airflow_outbox.operate.status import ask_pause
from airflow_outbox.postgres.names import OutboxName

from .conftest import ONE, Demo, first_flights

ROOT = Path(__file__).resolve().parents[4]
IMAGES = ROOT / "docs" / "images"
LARGEST = 150_000
"""Bytes of a picture."""
A_DAY = """
INSERT INTO outbox_history (shard, slot, noted_at, backlog_is_exact, state, backlog, oldest_age, rate, latency_p50,
                            latency_p99)
SELECT 0, mod(tens, 8640), to_timestamp(10 * tens), true,
       CASE WHEN stuck THEN 'stalled' WHEN behind THEN 'lagging' ELSE 'healthy' END,
       CASE WHEN stuck THEN 4000 + 900 * random() WHEN behind THEN 9000 * random() ELSE 40 * random() END,
       CASE WHEN stuck THEN 95 WHEN behind THEN 66 ELSE random() END,
       CASE WHEN stuck THEN 0 ELSE 60 + 45 * sin(tens / 700.0) + 20 * sin(tens / 31.0) + 12 * random() END,
       CASE WHEN NOT stuck THEN 0.006 + 0.004 * random() END,
       CASE WHEN NOT stuck THEN 0.03 + 0.03 * random() END
FROM (
    SELECT floor(extract(epoch FROM now()) / 10)::bigint - ago AS tens, ago BETWEEN 150 AND 171 AS stuck,
           ago BETWEEN 138 AND 150 AS behind
    FROM generate_series(1, 8600) AS ago
) AS past
"""
RENAME = """
([here, name]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(here, name);
}
"""
LEAST_HEIGHT = 620
"""Airflow's navigation is whole with so many pixels."""
NAME = "harvester-1"
"""The name that pictures have in place of this machine's."""


@dataclass
class Pictured:
    server: ApiServer
    demo: Demo
    orders: Demo


@pytest.fixture(scope="module")
def scene(
    postgres: EmbeddedPostgres, server_folder: Path, kafka_classpath: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pictured]:
    databases = {name: postgres.create_database(name) for name in ("flights", "orders", "invoices", "airflow_metadata")}
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka(server_folder / "pictured-kafka", classpath=kafka_classpath))
        stack.callback(kafka.kill)
        demos = {
            name: made(databases[name], kafka, topic, stack)
            for name, topic in (("flights", TOPICS[0]), ("orders", "orders.placed"), ("invoices", "invoices"))
        }
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS[1:]]).values():
            future.result()
        demos["flights"].stash(*first_flights(2_000))
        demos["orders"].outbox.stash(500)
        demos["invoices"].outbox.stash(120)
        with psycopg.connect(databases["invoices"], autocommit=True) as connection:
            wait_until(lambda: not demos["invoices"].outbox.left(), doing="publishing invoices")
            ask_pause(connection, OutboxName.parse("outbox"), paused=True, on_behalf_of="erin")
        wait_until(lambda: waits(demos["invoices"].outbox, 17), doing="pausing")
        server = stack.enter_context(
            ApiServer(
                tmp_path_factory.mktemp("airflow"),
                dags=ROOT / "dags",
                database=postgres.uri("airflow_metadata"),
                connections={f"{name}_db": as_connection(databases[name]) for name in demos},
                environment={"AIRFLOW__OUTBOX__OUTBOXES": "orders_db:outbox, invoices_db:outbox"},
            )
        )
        yield Pictured(server, demos["flights"], demos["orders"])


def waits(outbox: Outbox, count: int) -> bool:
    """Stash one more record, and say whether so many wait."""
    outbox.stash(1)
    return outbox.left() >= count


def made(database: str, kafka: EmbeddedKafka, topic: str, stack: ExitStack) -> Demo:
    outbox: Outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic)
    outbox.query(A_DAY)
    harvester = Process(CHILD, first_line={"config": outbox.settings})
    stack.callback(harvester.end)
    return Demo(outbox, kafka, harvester)


@pytest.fixture
def look(browser: Browser, scene: Pictured) -> Iterator[Callable[..., Visit]]:
    """Open a window of a size."""
    visits: list[Visit] = []

    def look(width: int, height: int, **options: object) -> Visit:
        visitor = Visit(browser, scene.server, "admin", viewport={"width": width, "height": height}, **options)
        visits.append(visitor)
        return visitor

    yield look
    for each in visits:
        each.close()


def draw(visitor: Visit, name: str, *, last: str | None = None) -> None:
    """Take the picture between two updates, which bring this machine's name back. It ends below the element `last`."""
    frame, here = visitor.frame(), socket.gethostname() + ":"
    if last is not None:
        box, size = frame.locator(last).first.bounding_box(), visitor.page.viewport_size
        assert box is not None
        assert size is not None
        height = max(LEAST_HEIGHT, ceil(box["y"] + box["height"]) + 12)
        visitor.page.set_viewport_size({"width": size["width"], "height": height})
    visitor.page.mouse.move(0, 0)
    for _ in range(20):
        frame.evaluate(RENAME, [here, NAME + ":"])
        picture = visitor.page.screenshot(animations="disabled")
        if here not in frame.locator("body").inner_text():
            assert len(picture) <= LARGEST
            (IMAGES / f"page-{name}.png").write_bytes(picture)
            return
    raise AssertionError(f"the page of {name} never stands still")


def settled(frame: Frame, state: str) -> None:
    expect(frame.locator(".verdict .badge")).to_have_text(state)


def test_pictures(look: Callable[..., Visit], scene: Pictured) -> None:
    demo = scene.demo
    order = {"order": 20417, "customer": "c-1186", "total": "129.90", "items": [{"sku": "KB-81", "count": 1}]}
    scene.orders.make_topic("orders.exported", **{"max.message.bytes": "1000"})
    [number, *_] = scene.orders.park(
        *(
            OutboxRecord(
                "orders.cancelled", f"c-{1186 + n}", json.dumps({**order, "order": 20417 + n}), {"trace": "7f3a"}
            )
            for n in range(3)
        )
    )
    scene.orders.park(OutboxRecord("orders.exported", "c-1201", token_hex(1_500), {"trace": "81c4"}))

    visitor = look(1280, 620)
    frame = visitor.open_framed("")
    expect(frame.locator("tbody tr")).to_have_count(3)
    demo.stash(*first_flights(400))
    draw(visitor, "list")

    for name, scheme in (("one", "light"), ("dark", "dark")):
        visitor = look(1280, 1080, color_scheme=scheme)
        settled(visitor.open_framed(ONE), "HEALTHY")
        draw(visitor, name, last=".times")

    visitor = look(390, 844)
    settled(visitor.open_framed(ONE), "HEALTHY")
    draw(visitor, "phone", last=".charts figure:has(svg.line)")

    of_orders = "outbox=orders_db:outbox"
    visitor = look(1280, 620)
    frame = visitor.open_framed(f"parked?{of_orders}")
    expect(frame.locator("tbody tr")).to_have_count(4)
    draw(visitor, "parked")
    frame.get_by_role("link", name="Discard all").click()
    expect(frame.get_by_role("dialog")).to_contain_text("Discard 4 records?")
    draw(visitor, "discard")
    visitor = look(1280, 960)
    frame = visitor.open_framed(f"record?{of_orders}&number={number}")
    expect(frame.get_by_role("heading", name="Value")).to_be_visible()
    draw(visitor, "record", last="[data-region=record]")

    visitor = look(1280, 620)
    frame = visitor.open_framed(ONE)
    demo.kafka.kill()
    demo.stash(*first_flights(200))
    settled(frame, "STALLED")
    draw(visitor, "stalled", last="[data-region=errors]")
