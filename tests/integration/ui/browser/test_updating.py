"""The page goes on by itself, and disturbs nobody who reads it."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Frame, Route, expect
from support.browser import Visit

from .conftest import ONE, Demo, first_flights
from .gone_kafka import LED, see_that_kafka_is_gone

SMALL = {"width": 1000, "height": 400}


def reading(frame: Frame) -> list[object]:
    """Where somebody is: scrolled to, selected, focused, unfolded."""
    found: list[object] = frame.evaluate(
        "[scrollY, String(getSelection()), document.activeElement.textContent.trim(),"
        " document.querySelectorAll('details[open]').length]"
    )
    return found


def test_an_update_leaves_the_reader_where_he_is(visit: Callable[..., Visit], demo: Demo) -> None:
    visitor = visit(viewport=SMALL)
    frame = visitor.open_framed(ONE)
    expect(frame.locator(".verdict .badge")).to_have_text(LED)  # all of it is shown
    published = frame.locator("[data-region=leaders] tbody td.number")
    before = published.text_content()
    frame.locator("summary").first.click()
    frame.evaluate(
        "getSelection().selectAllChildren(document.querySelector('[data-region=leaders] code'));"
        "document.querySelector('[data-region=uses] a').focus({preventScroll: true}); scrollTo(0, 333)"
    )
    begin = reading(frame)
    assert begin[0] == 333
    assert begin[2] == "outbox_harvest"
    assert all(begin)
    demo.stash(*first_flights(7))
    expect(published).not_to_have_text(before or "")
    expect(frame.locator("[data-region=topics]")).to_contain_text("flights.EWR")
    assert reading(frame) == begin


def test_a_page_that_cannot_update_says_so(visit: Callable[..., Visit]) -> None:
    visitor = visit("viewer")
    frame = visitor.open_framed(ONE)
    expect(frame.locator(".verdict .badge")).to_have_count(1)
    told = frame.locator("#stale")
    expect(told).to_be_hidden()

    def cut(route: Route) -> None:
        route.abort()

    visitor.page.route("**/outbox/one*", cut)
    expect(told).to_contain_text("Airflow does not answer")
    visitor.page.unroute("**/outbox/one*", cut)
    expect(told).to_be_hidden()
    visitor.sign_out()
    expect(told).to_contain_text("your session has ended")


def test_somebody_who_looks_sees_that_kafka_is_gone(visit: Callable[..., Visit], demo: Demo) -> None:
    see_that_kafka_is_gone(visit, demo)
