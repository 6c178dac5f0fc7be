"""Numbers, times and hostile texts, as templates show them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from uuid import uuid4

import pytest

from airflow_outbox.operate.details import Details, ShardProgress
from airflow_outbox.operate.overview import Overview
from airflow_outbox.operate.status import Holder, MemberStatus, ShardStatus
from airflow_outbox.ui import rendering
from airflow_outbox.ui.access import Asked, Visitor
from airflow_outbox.ui.outboxes import KeyPattern, OutboxKey, TaskRole, Use
from airflow_outbox.ui.pages import ListedOutbox
from airflow_outbox.values.outbox_list import OutboxPattern
from airflow_outbox.values.positions import GroupState, PositionsReport, SeenGroup
from airflow_outbox.values.verdict import Backlog, Facts, ParkedRefusals, State, Trouble, TroubleKind, Verdict

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`<b>`\u202e"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Elements(HTMLParser):
    """The elements of a page, their attributes' names, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def overview() -> Overview:
    facts = Facts(
        now=NOW,
        member=EVIL,
        last_error=EVIL,
        last_error_at=NOW,
        parked={EVIL: ParkedRefusals(3, NOW, EVIL)},
        troubles=(Trouble(EVIL, TroubleKind.KAFKA, EVIL, NOW, NOW),),
        positions=(PositionsReport(member=EVIL, told_at=NOW, groups={"left_alone": 2}, failures=3, said=(EVIL,)),),
    )
    return Overview(Verdict(State.STALLED, EVIL, NOW, EVIL, (EVIL,)), facts, 5, (1.0, None, 2.0))


KEY = OutboxKey(EVIL, EVIL)
USES = (Use(EVIL, EVIL, TaskRole.HARVESTS, KEY),)
BY_PATTERN = Use(
    "d", "every", TaskRole.HARVESTS, None, pattern=KeyPattern("pg", OutboxPattern.parse("tenant_*.outbox"))
)


def one() -> str:
    found = overview()
    own = Verdict(State.STALLED, EVIL, NOW)
    leaders = [
        ShardStatus(number, EVIL, uuid4(), NOW, 1.0, 1, flying, rate, False, EVIL, NOW, own, Backlog(1, oldest_age=2.0))
        for number, flying, rate in ((0, 3, 1.5), (1, 4, 0.0))
    ]
    details = Details(
        overview=found,
        outbox_id=uuid4(),
        incarnation=1,
        schema_version=10,
        dead_rows=3,
        shards_wanted=3,
        leaders=tuple(leaders),
        shards=(ShardProgress(0, EVIL, EVIL, 1, {EVIL: 3}, NOW),),
        oldest_holder=Holder("session", EVIL, 1, 3.0),
        members=(
            MemberStatus("a:1", "1.0", NOW, 2.0, [0, 1]),
            MemberStatus(EVIL, EVIL, NOW, 3.0, []),
            MemberStatus("c:3", "1.0", NOW, 16.0, [1]),
        ),
        groups=(SeenGroup(EVIL, GroupState.LEFT_ALONE, EVIL, {EVIL: 7}, NOW, EVIL),),
    )
    asked = Asked(Visitor(None), KEY, USES, may_act=True, may_see_values=True)
    values = {"asked": asked, "details": details, "verdict": found.verdict, "since": 3.0, "newest": None, "past": None}
    return rendered("one.html", **values)


def rendered(template: str, **values: object) -> str:
    given = {"base": "/base", "status": 200, **values}
    return rendering.environment().get_template(template).render(given)


def several() -> str:
    found = overview()
    return rendered("all.html", rows=[ListedOutbox(KEY, found.verdict, found)], troubled=1, problems=[EVIL])


def tab() -> str:
    found = overview()
    rows = [ListedOutbox(KEY, found.verdict, found)]
    return rendered("tab.html", what="Dag", rows=rows, templated=[*USES, BY_PATTERN])


def refused() -> str:
    return rendered("refused.html", status=403, problem=EVIL, login="")


@pytest.mark.parametrize("made", [one, several, tab, refused])
def test_markup_is_shown_as_text(made: object) -> None:
    text = made()  # type: ignore[operator]
    elements = Elements(text)
    assert "alert(1)" in elements.text
    assert "img" not in elements.names
    assert text.count("<script") == 1  # ours
    assert not any(name.startswith("on") for name in elements.attributes)


@pytest.mark.parametrize("made", [one, several, tab, refused])
def test_the_policy_allows_all_that_a_page_has(made: object) -> None:
    """No inline style or script, nothing from elsewhere."""
    text = made()  # type: ignore[operator]
    assert "style" not in Elements(text).attributes
    assert "http://" not in text
    assert "https://" not in text


def test_the_tiles_of_an_outbox_add_up_what_its_leaders_do() -> None:
    tiles = dict(re.findall(r"<dt>(.+?)</dt><dd>(.*?)</dd>", one()))
    assert (tiles["Records/s"], tiles["In flight"]) == ("1.5", "7")


def test_members_lead_or_stand_by_or_say_nothing() -> None:
    cells = re.findall(r'data-key="member.*?</tr>', one(), re.DOTALL)
    texts = [" ".join(Elements(f"<tr {cell}").text.split()) for cell in cells]
    assert [re.sub(".*(?=leads|stands|silent)", "", text).partition(" 2026")[0] for text in texts] == [
        "leads shards 0, 1",
        "stands by",
        "silent",
    ]


def test_no_text_turns_others_round() -> None:
    shown = Elements(one()).text
    assert "\\u202e" in shown


def test_numbers_and_times_are_short() -> None:
    numbers = {None: "–", 0.0: "0", 0.01234: "0.0123", 12.34: "12.3", 1234.5: "1,234"}
    assert {value: rendering.number(value) for value in numbers} == numbers
    durations = {None: "–", 0.0: "0.0 s", 0.004: "4 ms", 1.5: "1.5 s", 200: "3 min"}
    assert {value: rendering.duration(value) for value in durations} == durations
    assert [rendering.count(None), rendering.count(1234), rendering.count(1001, 1000)] == ["–", "1,234", "1,000+"]
    assert rendering.moment("infinity") == "infinity"
    assert rendering.moment(NOW) == "2026-01-02 03:04:05 UTC"


def test_each_of_several_shards_has_its_verdict_and_backlog() -> None:
    text = Elements(one()).text
    assert "2 shards; 3 are asked for" in " ".join(text.split())
    assert text.count("STALLED") == 3  # the outbox's, and theirs
    assert "Waiting" in text


def test_positions_are_shown_with_what_needs_somebody() -> None:
    text = Elements(one()).text
    assert "Positions of consumer groups" in text
    assert "3 failures since it was started" in text
    assert "left alone" in text
    assert "and 1 more" in text


def test_a_tab_tells_a_pattern_from_a_template() -> None:
    text = " ".join(Elements(tab()).text.split())
    assert "every harvests all outboxes that the pattern tenant_*.outbox means" in text
    assert text.count("a template names the outbox") == 1
