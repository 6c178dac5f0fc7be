"""How soon the page says what has happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from integration.ui.browser.conftest import Demo
from integration.ui.browser.gone_kafka import see_that_kafka_is_gone
from support.browser import Visit

pytestmark = [pytest.mark.timed, pytest.mark.long]

SEEN_WITHIN = 5.0
"""Seconds after which somebody who looks sees that Kafka is gone."""


def test_somebody_who_looks_sees_soon_that_kafka_is_gone(visit: Callable[..., Visit], demo: Demo) -> None:
    see_that_kafka_is_gone(visit, demo, within=SEEN_WITHIN)
