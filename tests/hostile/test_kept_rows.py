"""Records that Postgres won't delete, since something refers to them or a trigger objects: each is published once, is
kept aside with its cause, and holds up nobody.
"""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from hostile.innocents import Innocents
from support.harvesting import make_topic

HELD = "held"
"""The key of the record that can't be deleted."""
REFERENCE = """CREATE TABLE mail (id INT PRIMARY KEY, event BIGINT CONSTRAINT mail_event REFERENCES outbox {when});
INSERT INTO mail SELECT 1, id FROM outbox WHERE kafka_key = 'held'"""
TRIGGER = """CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$;
CREATE TRIGGER guard {when} DELETE ON outbox FOR EACH ROW {which} EXECUTE FUNCTION guard()"""
ONE = "WHEN (old.kafka_key = 'held')"
RAISE = "RAISE EXCEPTION 'events are for ever';"
REFERS, CONTRADICTS = "DROP TABLE mail", "DROP TRIGGER guard ON outbox"
HOLDS = {
    "a foreign key": (REFERENCE.format(when=""), "mail_event", REFERS),
    "a foreign key at the commit": (REFERENCE.format(when="DEFERRABLE INITIALLY DEFERRED"), "mail_event", REFERS),
    "a trigger before that raises": (
        TRIGGER.format(when="BEFORE", which=ONE, body=RAISE),
        "events are for ever",
        CONTRADICTS,
    ),
    "a trigger after that raises": (
        TRIGGER.format(when="AFTER", which=ONE, body=RAISE),
        "events are for ever",
        CONTRADICTS,
    ),
    "a trigger that keeps": (
        TRIGGER.format(when="BEFORE", which=ONE, body="RETURN NULL;"),
        "the trigger guard kept it",
        CONTRADICTS,
    ),
}
ALL_MODES = ("single", "atomic", "at least once")


def hold(innocents: Innocents, hold: str, *, topic: str | None = None) -> None:
    """Stash a record, and make what holds it, in one transaction; in a `topic` of its own, another one behind it."""
    with psycopg.connect(innocents.outbox.database) as connection:
        connection.execute(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, '1')",
            (topic or innocents.outbox.topic, HELD),
        )
        connection.execute(hold.encode())
        if topic:
            connection.execute(
                "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) VALUES (%s, %s, '2')", (topic, HELD)
            )


def published(innocents: Innocents, key: str = HELD) -> int:
    return sum(message.key() == key.encode() for message in innocents.outbox.committed())


def listed(innocents: Innocents) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(innocents.command("parked", "list", "--output", "json"))
    return found


def verdict(innocents: Innocents) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(innocents.command("status", "--output", "json"))["verdict"]
    return found


def is_lagging(innocents: Innocents, cause: str) -> bool:
    found = verdict(innocents)  # one look: a busy machine may think for a moment that nobody leads
    return found["state"] == "lagging" and cause in found["cause"]


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        *((mode, "a foreign key") for mode in ALL_MODES),
        *(("single", what) for what in HOLDS if what != "a foreign key"),
        ("at least once", "a trigger that keeps"),
    ],
)
def test_a_record_that_cannot_be_deleted_is_published_once_and_holds_up_nobody(innocents: Innocents, what: str) -> None:
    holds, cause, release = HOLDS[what]
    with innocents.harvested():
        innocents.around(lambda: hold(innocents, holds))
        innocents.wait_until(lambda: bool(listed(innocents)), "nobody says that a record is kept")
        [row] = listed(innocents)
        assert (row["key"], row["cause"]) == (HELD, "undeleted")
        assert cause in row["reason"]
        innocents.wait_until(lambda: is_lagging(innocents, cause), "the verdict says nothing of it")
        found = innocents.command("check", wants=None)
        assert ("mail_event" if release == REFERS else "the trigger guard") in found
        innocents.stand(named=None)
    with innocents.harvested():  # another member, which reads the whole table
        innocents.around(lambda: None)
        assert published(innocents) == 1
        with psycopg.connect(innocents.outbox.database, autocommit=True) as owner:
            owner.execute(release)
        innocents.wait_until(lambda: innocents.outbox.left() == 0, "what nothing holds any more stays")
        innocents.wait_until(lambda: not listed(innocents), "what was deleted is listed")
        innocents.wait_until(lambda: verdict(innocents)["state"] == "healthy", "the verdict stays")
    assert published(innocents) == 1


@pytest.mark.parametrize("each", ["ROW", "STATEMENT"])
@pytest.mark.parametrize("mode", ["single", "at least once"])
def test_where_no_record_can_be_deleted_each_is_published_once(innocents: Innocents, each: str) -> None:
    outbox, records = innocents.outbox, 500
    with psycopg.connect(outbox.database, autocommit=True) as owner:
        with innocents.harvested():
            trigger = TRIGGER.format(when="BEFORE", which="", body=RAISE)
            owner.execute(trigger.replace("EACH ROW", f"EACH {each}").encode())
            insert = "INSERT INTO outbox (kafka_topic, kafka_key) SELECT %s, 'a' || n FROM generate_series(1, %s) AS n"
            owner.execute(insert, (outbox.topic, records))
            kept = "SELECT count(*) FROM outbox_undeleted"
            innocents.wait_until(lambda: outbox.query(kept) == [(records,)], "not all are kept aside")
            innocents.wait_until(lambda: is_lagging(innocents, "can't be deleted"), "the verdict says nothing of it")
        owner.execute("DROP TRIGGER guard ON outbox")
        with innocents.harvested():
            innocents.around(lambda: None)
            innocents.wait_until(lambda: outbox.left() == 0, "what nothing keeps any more stays")
    keys = [message.key() for message in outbox.committed() if message.key().startswith(b"a")]
    assert sorted(keys) == sorted(f"a{number}".encode() for number in range(1, records + 1))


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_refused_record_that_cannot_be_deleted_is_parked_and_published_once(innocents: Innocents) -> None:
    outbox = innocents.outbox
    topic = outbox.topic + "-nowhere"
    with innocents.harvested():
        innocents.around(lambda: hold(innocents, HOLDS["a foreign key"][0], topic=topic))
        innocents.wait_until(
            lambda: [row["cause"] for row in listed(innocents)] == ["unknown_topic", None], "they are not parked"
        )
    with innocents.harvested():
        innocents.around(lambda: None)
        assert [row["cause"] for row in listed(innocents)] == ["unknown_topic", None]
        make_topic({"bootstrap.servers": outbox.bootstrap}, topic)
        innocents.wait_until(lambda: not outbox.query("SELECT FROM outbox_parked"), "it is parked again")
        with psycopg.connect(outbox.database, autocommit=True) as owner:
            owner.execute("DROP TABLE mail")
        innocents.wait_until(lambda: outbox.left() == 0, "what nothing holds any more stays")
        innocents.around(lambda: None)
    outbox.topic = topic
    assert outbox.by_key() == {HELD: [1, 2]}


@pytest.mark.parametrize("mode", ["single"])
def test_a_trigger_on_the_parked_table_loses_no_record(innocents: Innocents) -> None:
    """One that keeps records out is found as soon as it does that; harvesting waits until it is gone."""
    outbox = innocents.outbox
    guard = """CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER guard BEFORE INSERT ON outbox_parked FOR EACH ROW EXECUTE FUNCTION guard()"""
    insert = f"INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('{outbox.topic}-nowhere', 'held')"
    with psycopg.connect(outbox.database, autocommit=True) as owner, innocents.harvested() as process:
        owner.execute(guard.encode())
        owner.execute(insert.encode())

        def is_told() -> bool:
            return any("outbox_parked" in event.get("error", "") for event in process.events)

        innocents.wait_until(is_told, "nobody says what the trigger does")
        assert "has the trigger guard" in innocents.command("check", wants=1)
        assert outbox.left() == 1
        owner.execute("DROP TRIGGER guard ON outbox_parked")
        innocents.wait_until(lambda: [row["key"] for row in listed(innocents)] == [HELD], "it is not parked")
        innocents.around(lambda: None)


@pytest.mark.parametrize("mode", ["single"])
def test_a_trigger_on_the_parked_table_publishes_no_record_twice(innocents: Innocents) -> None:
    outbox = innocents.outbox
    topic = outbox.topic + "-nowhere"
    guard = """CREATE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
    CREATE TRIGGER guard BEFORE DELETE ON outbox_parked FOR EACH ROW EXECUTE FUNCTION guard()"""
    with psycopg.connect(outbox.database, autocommit=True) as owner, innocents.harvested() as process:
        owner.execute(f"INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('{topic}', 'held')".encode())
        innocents.wait_until(lambda: bool(listed(innocents)), "it is not parked")
        owner.execute(guard.encode())
        make_topic({"bootstrap.servers": outbox.bootstrap}, topic)

        def is_told() -> bool:
            return any("outbox_parked" in event.get("error", "") for event in process.events)

        innocents.wait_until(is_told, "nobody says what the trigger does")
        assert "has the trigger guard" in innocents.command("check", wants=1)
        owner.execute("DROP TRIGGER guard ON outbox_parked")
        innocents.wait_until(lambda: not listed(innocents), "it stays parked")
        innocents.around(lambda: None)
    outbox.topic = topic
    assert published(innocents) == 1
