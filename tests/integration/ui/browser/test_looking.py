"""The pages as somebody sees them who looks around in Airflow."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Frame, Page, expect
from support.browser import Visit
from support.harvesting import wait_until

from airflow_outbox import OutboxRecord

from .conftest import KEY, ONE, Demo

PHONE = {"width": 390, "height": 844}
SERIOUS = ("serious", "critical")
TAB = "dag?dag_id=outbox_harvest"
PAGES = ("", ONE, f"parked?outbox={KEY}", f"trail?outbox={KEY}", TAB, f"{TAB.replace('dag?', 'task?')}&task_id=harvest")


def look_of(frame: Frame) -> tuple[str, str]:
    """The colour scheme, and the colour of the background."""
    found = frame.evaluate(
        "[getComputedStyle(document.documentElement).colorScheme, getComputedStyle(document.body).backgroundColor]"
    )
    return found[0], found[1]


def focused(frame: Frame) -> str:
    return str(frame.evaluate("document.activeElement.textContent")).strip()


def tab_to(visit: Visit, frame: Frame, text: str) -> None:
    """Press Tab until the element with this text has the focus, which has to be seen."""
    for _ in range(60):
        visit.page.keyboard.press("Tab")
        if focused(frame) == text:
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            assert frame.evaluate(outline) != "none", f"nobody sees that {text} has the focus"
            return
    raise AssertionError(f"Tab never comes to {text}")


def serious(frame: Frame | Page) -> list[str]:
    """The faults that keep people from using a page, in words."""
    found = Axe().run(frame).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html']}" for each in found if each["impact"] in SERIOUS]


@pytest.fixture(scope="module")
def parked_number(demo: Demo) -> int:
    """A parked record."""
    [number] = demo.park(OutboxRecord("flights.unknown", "N14228", '{"flight": 1545}', {"source": "nycflights13"}))
    return number


def test_somebody_finds_an_outbox_and_comes_back(visit: Callable[..., Visit]) -> None:
    visitor = visit("viewer")
    visitor.page.goto(visitor.address(""))
    visitor.page.get_by_role("link", name="Outbox").click()
    frame = visitor.frame()
    row = frame.locator("tr", has=frame.get_by_role("link", name="outbox", exact=True))
    expect(row).to_contain_text("flights_db")
    row.get_by_role("link").click()
    expect(frame.get_by_role("heading", level=1)).to_contain_text("outbox")
    expect(visitor.page).to_have_url(re.compile(r"one\?outbox=flights_db"))
    expect(frame.locator("[data-region=topics]")).to_contain_text("flights.EWR")
    visitor.page.go_back()
    expect(visitor.frame().get_by_role("heading", name="Outboxes")).to_be_visible()
    assert visitor.problems == []


def test_a_link_leads_into_the_middle_and_survives_a_reload(visit: Callable[..., Visit]) -> None:
    visitor = visit("viewer")
    frame = visitor.open_framed(ONE)
    expect(frame.locator(".verdict .badge")).to_have_count(1)
    visitor.page.reload()
    expect(visitor.frame().get_by_role("heading", level=1)).to_contain_text("outbox")
    assert visitor.frame().url.endswith(ONE)
    alone = visitor.open_alone(ONE)  # as in Airflow before 3.3.2
    expect(alone.locator(".verdict .badge")).to_have_count(1)


def test_a_dag_shows_its_outbox(visit: Callable[..., Visit]) -> None:
    visitor = visit("viewer")
    visitor.page.goto(visitor.address("dags/outbox_harvest"))
    expect(visitor.page.get_by_role("link", name=re.compile("Failed Runs"))).to_be_visible()  # Airflow has drawn it all
    visitor.page.locator('a[href$="/dags/outbox_harvest/plugin/outbox_dag"]').click()
    expect(visitor.page).to_have_url(re.compile("/dags/outbox_harvest/plugin/outbox"))
    frame = visitor.frame()
    expect(frame.get_by_role("link", name="outbox", exact=True)).to_be_visible()
    frame.get_by_role("link", name="outbox", exact=True).click()
    expect(frame.locator(".verdict .badge")).to_have_count(1)


def test_the_page_is_dark_when_airflow_is(visit: Callable[..., Visit]) -> None:
    visitor = visit("viewer", color_scheme="dark")
    frame = visitor.open_framed(ONE)
    frame.wait_for_function("getComputedStyle(document.documentElement).colorScheme === 'dark'")
    _, dark = look_of(frame)
    visitor.page.evaluate("document.documentElement.classList.replace('dark', 'light')")
    frame.wait_for_function("getComputedStyle(document.documentElement).colorScheme === 'light'")
    assert look_of(frame)[1] != dark


def test_everything_fits_a_phone(visit: Callable[..., Visit], parked_number: int) -> None:
    visitor = visit(viewport=PHONE)
    frame = visitor.open_framed("")
    for path in (*PAGES, f"record?outbox={KEY}&number={parked_number}"):
        visitor.go(frame, path)
        expect(frame.get_by_role("heading", level=1)).to_be_visible()
        widths = frame.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], f"{path or 'the list'} has to be scrolled sideways"


def test_the_keyboard_suffices(visit: Callable[..., Visit]) -> None:
    visitor = visit()
    frame = visitor.open_framed("")
    frame.focus("body")
    tab_to(visitor, frame, "outbox")
    visitor.page.keyboard.press("Enter")
    expect(frame.locator(".verdict .badge")).to_have_count(1)
    tab_to(visitor, frame, "Pause…")
    visitor.page.keyboard.press("Enter")
    expect(frame.get_by_role("dialog")).to_contain_text("Nothing more is published")
    wait_until(lambda: focused(frame) == "Cancel")
    visitor.page.keyboard.press("Escape")
    expect(frame.get_by_role("dialog")).to_be_hidden()
    wait_until(lambda: focused(frame) == "Pause…")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nobody_is_kept_out(visit: Callable[..., Visit], parked_number: int, theme: str) -> None:
    """Axe finds nothing serious."""
    visitor = visit(color_scheme=theme)
    frame = visitor.open_framed("")
    found = {}
    for path in (*PAGES, f"record?outbox={KEY}&number={parked_number}"):
        visitor.go(frame, path)
        expect(frame.get_by_role("heading", level=1)).to_be_visible()
        found[path] = serious(frame)
    frame.get_by_role("link", name="Discard this record").click()
    expect(frame.get_by_role("dialog")).to_be_visible()
    found["dialog"] = serious(frame)
    assert {path: problems for path, problems in found.items() if problems} == {}
