"""A trigger that keeps what is deleted, made while a member leads: its records are published once all the same."""

from __future__ import annotations

import psycopg
from hostile.innocents import Innocents

KEEP = """CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW WHEN (old.kafka_key = 'k1') EXECUTE FUNCTION keep()"""


def test_what_a_trigger_keeps_is_noticed_and_not_published_again(innocents: Innocents) -> None:
    with psycopg.connect(innocents.outbox.database, autocommit=True) as owner:
        with innocents.harvested() as process:
            owner.execute(KEEP)
            innocents.write()

            def is_told() -> bool:
                return any(
                    "the trigger keep" in event["error"] for event in process.events if event["event"] == "error"
                )

            innocents.wait_until(is_told, "nobody says that a trigger keeps records")
            assert "the trigger keep" in innocents.command("check", wants=1)
        owner.execute("DROP TRIGGER keep ON outbox")
        with innocents.harvested():
            innocents.stand(named=None)
