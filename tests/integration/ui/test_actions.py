"""Acting from the page: the commands' own requests, counted before they are made, and noted in the trail."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
from support.acting import act
from support.harvesting import wait_until
from support.parking import park_by_hand

HARVESTED = {"outbox": "postgres_default:harvested"}
HOSTILE = "\"><script>alert(1)</script>'<img src=x onerror=alert(2)>{{ 7 * 7 }}\u202e"
TRAIL = "SELECT action, on_behalf_of, matched, reason, records FROM harvested_trail ORDER BY number"


@pytest.fixture
def connection(outboxes: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(outboxes, autocommit=True) as connection:
        as_it_was(connection)
        yield connection
        as_it_was(connection)


def as_it_was(connection: psycopg.Connection[Any]) -> None:
    """Nothing is parked or undeleted, nobody leads, and nothing was asked for."""
    connection.execute("TRUNCATE harvested, harvested_undeleted, harvested_parked, harvested_trail RESTART IDENTITY")
    connection.execute("UPDATE harvested_state SET paused = false, paused_at = NULL")
    connection.execute("UPDATE harvested_shard SET member = NULL, handover_asked_at = NULL")


def shown(client: httpx.Client, path: str, *texts: str, **params: Any) -> str:
    """A page that has these texts, soon: answers are shared for a second."""
    query, page = {**HARVESTED, **params}, ""

    def is_shown() -> bool:
        nonlocal page
        page = client.get(path, params=query).raise_for_status().text
        return all(text in page for text in texts)

    wait_until(is_shown, doing=lambda: f"waiting for {texts} in {page}")
    return page


def requested(connection: psycopg.Connection[Any]) -> list[str | None]:
    rows = connection.execute("SELECT requested FROM harvested_parked ORDER BY number").fetchall()
    return [request for (request,) in rows]


def test_pause_resume_and_handover_are_the_commands_requests(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    paused = "SELECT paused, paused_at IS NOT NULL FROM harvested_state"
    answer = act(visitors["user"], "pause", "harvested")
    assert "mark nothing more" in answer.text
    assert connection.execute(paused).fetchall() == [(True, True)]
    assert "go on" in act(visitors["op"], "resume", "harvested").text
    assert connection.execute(paused).fetchall() == [(False, False)]
    assert "Nobody leads" in act(visitors["admin"], "handover", "harvested").text
    connection.execute("UPDATE harvested_shard SET member = 'host:17'")
    assert "host:17 hands over" in act(visitors["admin"], "handover", "harvested").text
    [(was_asked,)] = connection.execute("SELECT handover_asked_at IS NOT NULL FROM harvested_shard").fetchall()
    assert was_asked
    assert [row[:3] for row in connection.execute(TRAIL).fetchall()] == [
        ("pause", "user", None),
        ("resume", "op", None),
        ("handover", "admin", "shard 0"),
        ("handover", "admin", "shard 0"),
    ]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ({"number": 2}, [1]),
        ({"topic": "t", "key": "a"}, [0, 2]),
        ({"key": "a"}, [0, 2, 3]),
        ({"topic": "u"}, [3, 4]),
        ({"cause": "too_large"}, [3, 4]),
        ({"topic": "t", "cause": "any"}, [0, 1, 2]),
        ({"everything": True}, [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("what", ["retry", "discard"])
def test_what_was_counted_is_asked_for(
    visitors: dict[str, httpx.Client],
    connection: psycopg.Connection[Any],
    what: str,
    wanted: dict[str, Any],
    meant: list[int],
) -> None:
    park_by_hand(connection, "a", "b", "a", topic="t", outbox="harvested")
    park_by_hand(connection, "a", "c", topic="u", cause="too_large", outbox="harvested")
    given = {name: value for name, value in wanted.items() if name != "everything"}
    asked = visitors["user"].get("ask", params={**HARVESTED, "what": what, **given})
    noun = "record" if len(meant) == 1 else "records"
    assert f"{what.capitalize()} {len(meant)} {noun}?" in asked.text
    assert requested(connection) == [None] * 5
    park_by_hand(connection, "a", topic="t", outbox="harvested")  # meanwhile
    answer = act(visitors["user"], what, "harvested", reason="because", up_to=5, **wanted)
    assert f"{len(meant)} {noun}" in answer.raise_for_status().text
    assert requested(connection) == [what if place in meant else None for place in range(6)]
    [(action, name, matched, reason, records)] = connection.execute(TRAIL).fetchall()
    assert (action, name, records) == (what, "user", len(meant))
    assert reason == ("because" if what == "discard" else None)
    assert matched == ("all" if "everything" in wanted else "; ".join(f"{key} {value}" for key, value in given.items()))


@pytest.mark.parametrize(
    ("params", "reason", "status"),
    [
        ({"up_to": 9}, "why", 400),  # which records?
        ({"up_to": 9, "everything": True, "topic": "t"}, "why", 400),
        ({"everything": True}, "why", 422),  # nobody has counted
        ({"up_to": 9, "everything": True}, None, 422),
        ({"up_to": 9, "everything": True}, "", 422),
        ({"up_to": 9, "everything": True}, "   ", 400),
        ({"up_to": 9, "everything": True}, "x" * 1001, 422),
        ({"up_to": 9, "cause": "drop table"}, "why", 400),
        ({"up_to": 9, "topic": "a\0b"}, "why", 400),
        ({"up_to": 2**70, "everything": True}, "why", 422),
        ({"up_to": 9, "number": -1}, "why", 422),
    ],
)
def test_an_unclear_request_does_nothing(
    visitors: dict[str, httpx.Client],
    connection: psycopg.Connection[Any],
    params: dict[str, Any],
    reason: str | None,
    status: int,
) -> None:
    park_by_hand(connection, "a", topic="t", outbox="harvested")
    assert act(visitors["admin"], "discard", "harvested", reason=reason, **params).status_code == status
    assert requested(connection) == [None]
    assert connection.execute(TRAIL).fetchall() == []


def test_nothing_is_asked_for_where_nothing_matches_any_more(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    asked = visitors["user"].get("ask", params={**HARVESTED, "what": "discard", "number": 1})
    assert "No waiting record matches" in asked.text
    answer = act(visitors["user"], "discard", "harvested", reason="why", number=1, up_to=1)
    assert "No waiting record matches any more" in answer.text
    assert connection.execute(TRAIL).fetchall() == []


def test_hostile_texts_are_shown_as_text(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    park_by_hand(connection, HOSTILE, topic=HOSTILE, value=HOSTILE, outbox="harvested")
    connection.execute(
        "UPDATE harvested_parked SET kafka_header_keys = ARRAY[%(text)s], kafka_header_values = ARRAY[%(text)s],"
        " reason = %(text)s",
        {"text": HOSTILE},
    )
    wanted = {"topic": HOSTILE, "key": HOSTILE}
    act(visitors["user"], "discard", "harvested", reason=HOSTILE, up_to=1, **wanted).raise_for_status()
    seen = HOSTILE.replace("\u202e", "\\u202e")
    escaped = html.escape(seen).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    for path, params in {
        "parked": {},
        "record": {"number": 1},
        "trail": {},
        "ask": {"what": "retry", **wanted},
    }.items():
        text = shown(visitors["user"], path, escaped, **params)
        assert "<script>alert" not in text
        assert "<img" not in text
    filtered = shown(visitors["user"], "parked", "1\n  record matches", **wanted)
    assert "<script>alert" not in filtered
    assert escaped in filtered


def test_values_are_hidden_unless_allowed(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    park_by_hand(connection, "secret-key", topic="t", value='{"secret": "value"}', outbox="harvested")
    connection.execute(
        "UPDATE harvested_parked SET kafka_header_keys = '{secret-name}', kafka_header_values = '{secret-header}'"
    )
    act(visitors["user"], "retry", "harvested", up_to=1, key="secret-key").raise_for_status()
    secrets = ("secret-key", "secret-name", "secret-header", "value&#34;}", "73 65 63 72 65 74")
    pages = {"parked": ("secret-key",), "record": secrets, "trail": ("secret-key",)}
    for path, expected in pages.items():
        params = {"number": 1} if path == "record" else {}
        shown(visitors["user"], path, *expected, **params)
        text = shown(visitors["viewer"], path, "hidden", **params)
        assert not [secret for secret in secrets if secret in text]
    guess = {**HARVESTED, "key": "secret-key"}
    assert (visitors["viewer"].get("parked", params=guess).status_code) == 403


def test_a_record_tells_who_asked_what(visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]) -> None:
    park_by_hand(connection, "a", topic="t", outbox="harvested")
    act(visitors["op"], "discard", "harvested", reason="it is broken", number=1, up_to=1).raise_for_status()
    viewer = visitors["viewer"]
    shown(viewer, "record", "for <strong><bdi>op</bdi></strong>", "it is broken", number=1)
    shown(viewer, "parked", "discard asked for")
    connection.execute("UPDATE harvested_parked SET discarded_at = now()")
    shown(viewer, "record", "It is never published", number=1)
    shown(viewer, "parked", "Nothing is parked")
    shown(viewer, "parked", "record?outbox=", discarded=True)
    assert viewer.get("record", params={**HARVESTED, "number": 2}).status_code == 404


def test_pages_follow_one_another(visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]) -> None:
    park_by_hand(connection, *(f"k{number}" for number in range(150)), topic="t", outbox="harvested")
    first = shown(visitors["viewer"], "parked", "150\n  records match", cause="any")
    [link] = [part.split('"')[0] for part in first.split('href="') if "after_number" in part]
    second = visitors["viewer"].get(html.unescape(link)).text
    assert (first.count("<tr data-key="), second.count("<tr data-key=")) == (100, 50)


def test_what_postgres_will_not_delete_is_shown_with_the_reason(
    visitors: dict[str, httpx.Client], connection: psycopg.Connection[Any]
) -> None:
    """Published records that stay in the outbox: there is nothing to retry or discard."""
    park_by_hand(connection, "parked", topic="u", outbox="harvested")
    connection.execute(
        "WITH kept AS (INSERT INTO harvested (kafka_topic, kafka_key) VALUES ('t', 'k-1'), ('t<b>', 'k-2')"
        " RETURNING id, create_time)"
        " INSERT INTO harvested_undeleted (id, create_time, shard, published, reason)"
        " SELECT id, create_time, 0, true, 'referenced by <mail>' FROM kept"
    )
    user = visitors["user"]
    everything = shown(user, "parked", "1\n  record", "still in the outbox", "k-1", "k-2", "t&lt;b&gt;")
    assert "referenced by &lt;mail&gt;" in everything
    assert "refers to them" in everything  # what to do
    assert everything.count("what=discard") == 1  # for the parked one
    shown(user, "parked", "still in the outbox", "k-1", cause="any")  # where the verdict's link leads
    of_topic = shown(user, "parked", "No record matches", "k-1", topic="t")
    assert "k-2" not in of_topic
    assert "k-1" not in shown(user, "parked", "No record matches", "k-2", topic="t<b>", key="k-2")
    for others in ({"cause": "too_large"}, {"cause": "none"}, {"discarded": True}):
        text = shown(user, "parked", "records", **others)
        assert "still in the outbox" not in text
    hidden = shown(visitors["viewer"], "parked", "still in the outbox", "referenced by")
    assert "k-1" not in hidden
    connection.execute("TRUNCATE harvested, harvested_undeleted")
    wait_until(lambda: "still in the outbox" not in user.get("parked", params=HARVESTED).text)
