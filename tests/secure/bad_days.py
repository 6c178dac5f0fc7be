"""Troubles of a bad day: how each is made, the words that it must be told in, and how it is mended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg
from secure.conftest import SecureOutbox
from secure.disks import Disk
from support.harvesting import Outbox

from airflow_outbox import OutboxRecord, stash

RECORDS = 20
MANY = 2000  # so many that marking or parking them needs pages of their own
NO_ROOM = "No space left on device.*Free some of Postgres' disk"


@dataclass(frozen=True, slots=True)
class BadDay:
    """A trouble, with records that wait; the words that it must be told in; and how it is mended.

    `parked` is how many records are still parked when all is mended: what is wrong with them is another matter.
    """

    says: str
    damage: Callable[[SecureOutbox], None]
    mend: Callable[[SecureOutbox], None]
    delivery: str = "exactly_once"
    parked: int = 0


def execute(outbox: Outbox, *statements: str) -> None:
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def statements(damage: str, mend: str, says: str) -> BadDay:
    """A bad day by SQL; `HARVESTER` is the harvester's role."""

    def run(text: str, outbox: SecureOutbox) -> None:
        execute(outbox, *text.replace("HARVESTER", f'"{outbox.user}"').split("; "))

    def do_damage(outbox: SecureOutbox) -> None:
        run(damage, outbox)
        outbox.stash(RECORDS)

    return BadDay(says, do_damage, lambda outbox: run(mend, outbox))


def privilege(what: str, says: str) -> BadDay:
    """A bad day without something that `grant` gives."""
    also = "; REVOKE USAGE ON SCHEMA public FROM PUBLIC" if "SCHEMA" in what else ""
    damage = f"REVOKE {what.replace(' TO ', ' FROM ')}{also}"
    return statements(damage, f"GRANT {what}", rf"permission denied for {says}.*`airflow-outbox grant`")


def poison(outbox: SecureOutbox, records: int) -> None:
    """Stash records that have to be parked, of one key."""
    with psycopg.connect(outbox.database) as connection:
        stash(connection, [OutboxRecord(outbox.topic, "parked", "v" * 500) for _ in range(records)])
        connection.execute("UPDATE outbox SET kafka_header_keys = ARRAY['n']")


def may_not_park() -> BadDay:
    """A bad day on which a record has to be parked."""
    day = privilege("INSERT ON outbox_parked TO HARVESTER", "table outbox_parked")

    def damage(outbox: SecureOutbox) -> None:
        day.damage(outbox)
        poison(outbox, 1)

    return replace(day, damage=damage, parked=1)


def missing(table: str) -> BadDay:
    """A bad day without a table; who stashes has one, too."""

    def mend(outbox: SecureOutbox) -> None:
        execute(outbox, f"ALTER TABLE gone RENAME TO {table}")
        outbox.stash(RECORDS)

    rename = f"ALTER TABLE {table} RENAME TO gone"
    return BadDay("Run `airflow-outbox init`", lambda outbox: execute(outbox, rename), mend)


def header(values: str, says: str) -> BadDay:
    """A bad day by one bad row: it is parked, and what comes behind it waits, until somebody corrects it."""

    def damage(outbox: SecureOutbox) -> None:
        with psycopg.connect(outbox.database) as connection:
            stash(connection, [OutboxRecord(outbox.topic, "k", str(n), {"n": str(n)}) for n in range(RECORDS)])
            connection.execute(f"UPDATE outbox SET kafka_header_values = {values} WHERE kafka_value = '5'".encode())

    right = "UPDATE outbox_parked SET kafka_header_values = ARRAY['5'], requested = 'retry' WHERE kafka_value = '5'"
    return BadDay(says, damage, lambda outbox: execute(outbox, right))


def permission(number: int) -> BadDay:
    """A bad day without something that `check --acls` lists."""

    def damage(outbox: SecureOutbox) -> None:
        outbox.kafka.forbid(outbox.user, [outbox.acls[number]])
        outbox.stash(RECORDS)

    return BadDay(
        r"Kafka does not allow (READ|WRITE) on (group|topic|transactional-id) \S+\. `airflow-outbox check --acls",
        damage,
        lambda outbox: outbox.kafka.allow(outbox.user, [outbox.acls[number]]),
    )


def full_disk(disk: Disk, table: str, day: BadDay, *, change: str) -> BadDay:
    """A bad day without room for another page of a table: really, or else by a trigger that raises the same error.

    `day` says what the rows are, and their delivery; `change` is what is done to the table's rows then.
    """

    def damage(outbox: SecureOutbox) -> None:
        if disk.folder is None:
            execute(
                outbox,
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$",
                f"CREATE TRIGGER full_disk BEFORE {change} ON {table} FOR EACH ROW EXECUTE FUNCTION full_disk()",
            )
            day.damage(outbox)
            return
        execute(outbox, f"ALTER TABLE {table} SET TABLESPACE {disk.tablespace}")
        day.damage(outbox)

    def mend(outbox: SecureOutbox) -> None:
        if disk.folder is None:
            execute(outbox, f"DROP TRIGGER full_disk ON {table}")
        else:
            (disk.folder / "ballast").unlink()

    return replace(day, says=NO_ROOM, damage=damage, mend=mend)


def no_room_to_mark(disk: Disk) -> BadDay:
    def damage(outbox: SecureOutbox) -> None:
        with psycopg.connect(outbox.database) as connection:
            stash(connection, [OutboxRecord(outbox.topic, "k", "v" * 500) for _ in range(MANY)])
            disk.fill()

    day = BadDay(NO_ROOM, damage, damage, delivery="at_least_once")
    return full_disk(disk, "outbox", day, change="UPDATE")


def no_room_to_park(disk: Disk) -> BadDay:
    def damage(outbox: SecureOutbox) -> None:
        disk.fill()
        poison(outbox, MANY)

    day = BadDay(NO_ROOM, damage, damage, parked=MANY)
    return full_disk(disk, "outbox_parked", day, change="INSERT")


BAD_DAYS = {
    "may not select": privilege("SELECT ON outbox TO HARVESTER", "table outbox"),
    "may not delete": privilege("DELETE ON outbox TO HARVESTER", "table outbox"),
    "may not mark": replace(
        privilege("UPDATE (leader_id) ON outbox TO HARVESTER", "table outbox"), delivery="at_least_once"
    ),
    "may not park": may_not_park(),
    "may not look at the fence": privilege("SELECT ON outbox_shard TO HARVESTER", "table outbox_shard"),
    "may not write the fence": privilege("UPDATE ON outbox_shard TO HARVESTER", "table outbox_shard"),
    "may not enter the schema": privilege("USAGE ON SCHEMA public TO HARVESTER", "schema public"),
    "the password is another": statements(
        "ALTER ROLE HARVESTER PASSWORD 'another'; "
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND usename = datname",
        "ALTER ROLE HARVESTER PASSWORD 'pw'",
        "password authentication failed for user.*Check the data source",
    ),
    "the table is gone": missing("outbox"),
    "the fence is gone": missing("outbox_shard"),
    "a header is null": header("ARRAY[NULL]", "a header's name or value is null"),
    "a header is missing": header("'{}'", "1 header names for 0 header values"),
    "not allowed in the group": permission(0),
    "not allowed to read heartbeats": permission(1),
    "not allowed to send heartbeats": permission(2),
    "not allowed to write the ledger": permission(4),
    "not allowed to use the transactional id": permission(5),
    "not allowed to publish": permission(7),
}
# Days of the long form only: others are like them, and each has a harvester of its own, which costs 5 s of a processor.
LIKE_OTHERS = {
    "may not select",
    "may not mark",
    "may not look at the fence",
    "may not enter the schema",
    "the fence is gone",
    "a header is missing",
    "not allowed to read heartbeats",
    "not allowed to write the ledger",
}
# A leader that isn't heard steps down after the heartbeat timeout, and so may have harvested all.
MAY_BE_DONE = {
    "not allowed in the group",
    "the table is gone",
    "the fence is gone",
    "not allowed to read heartbeats",
    "not allowed to send heartbeats",
}
