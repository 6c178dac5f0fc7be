"""Somebody looks at the page of an outbox while its Kafka is gone."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect
from support.browser import Visit
from support.harvesting import PATIENCE

from .conftest import ONE, Demo

LED = re.compile("HEALTHY|LAGGING")  # the latter where another test has left something parked


def see_that_kafka_is_gone(visit: Callable[..., Visit], demo: Demo, *, within: float = PATIENCE) -> None:
    """Within so many seconds the page says something new."""
    frame = visit("viewer").open_framed(ONE)
    badge = frame.locator(".verdict .badge")
    expect(badge).to_have_text(LED)
    before = badge.text_content() or ""
    demo.kafka.kill()
    try:
        expect(badge).not_to_have_text(before, timeout=1000 * within)
        expect(badge).to_have_text("STALLED")
        expect(frame.locator(".verdict")).to_contain_text("Kafka")
    finally:
        demo.kafka.restart()
    expect(badge).to_have_text(LED, timeout=3000 * PATIENCE)
