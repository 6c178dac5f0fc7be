"""`airflow-outbox init · rename`: make an outbox, bring it up to date, give it another name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import click
import psycopg

from airflow_outbox.cli.answers import answer, as_text_or_json, say
from airflow_outbox.cli.options import clear_errors, configuration_of_many, database, on_behalf_of
from airflow_outbox.errors import ConfigurationError, OutboxError, PostgresError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.many.choice import of_outbox
from airflow_outbox.harvest.many.names import make_list_topics, named_outboxes
from airflow_outbox.operate.reshard import prepare
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.columns import lacks_transaction_ids, read_columns
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import reason_of
from airflow_outbox.postgres.init_script import init_script
from airflow_outbox.postgres.layout import ask_layout, known_shards, read_layout, was_led
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.outbox_types import OutboxTypes
from airflow_outbox.postgres.renaming import rename_outbox
from airflow_outbox.postgres.schema import cost_of_transaction_id, init_outbox
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.membership import Part

_SCRIPT_BEGINS = """\
-- This is what `airflow-outbox init` would run. Run it as the role that is to own the outbox's tables, or owns them.
-- Then run `airflow-outbox init` as a role that may read them: it makes the topics in Kafka.
BEGIN;
SET LOCAL search_path = pg_catalog;
"""


@click.command("init")
@configuration_of_many
@click.option(
    "--key-type", help="The keys' type in a new table: varchar(n), text or bytea; without the option varchar(100)."
)
@click.option("--value-type", help="The values' type in a new table, likewise; without the option varchar(10000).")
@click.option("--header-type", help="The header values' type in a new table: text, as without the option, or bytea.")
@click.option("--create-schema", is_flag=True, help="Create the schema that outbox_table names, if it is missing.")
@click.option(
    "--transaction-id", is_flag=True, help="Add the column transaction_id to a table that goharvest made, too."
)
@click.option(
    "--function",
    "stash_function",
    is_flag=True,
    help="Make the function <outbox>_stash, too: it stashes a record in one call, from any language.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 64),
    help="How many leaders share the outbox; by default as the configuration says. `reshard` changes it later.",
)
@click.option("--print", "prints", is_flag=True, help="Only print the SQL, for somebody who may make tables.")
@as_text_or_json
def init_command(
    config: HarvestConfig,
    key_type: str | None,
    value_type: str | None,
    header_type: str | None,
    create_schema: bool,
    transaction_id: bool,
    stash_function: bool,
    shards: int | None,
    prints: bool,
    output: str,
) -> None:
    """Create the outbox's tables and its own topics, or bring them up to date. Existing things stay as they are.

    A file may name many outboxes. Then all of them are made, and the topic of their election; `--outbox` makes one.
    """
    options = {"transaction_id": transaction_id, "stash_function": stash_function, "create_schema": create_schema}
    with clear_errors():
        types = OutboxTypes(key_type, value_type, header_type)
        for each in [of_outbox(config, name) for name in named_outboxes(config)] if config.outboxes else [config]:
            if prints:
                _print_script(each, types, options, output)
            else:
                _init(each, shards or config.shards, types, options, output)
        if config.outboxes and not prints:
            done = [f"created topic {topic}" for topic in make_list_topics(config)]
            answer(done, {"done": done}, output=output)


def _require_harvestable(connection: psycopg.Connection[Any], config: HarvestConfig, *, transaction_id: bool) -> None:
    """Raise ConfigurationError if the table is there, is this role's, and can't be harvested as it is configured."""
    name = located(connection, config.name)
    if config.delivery != "exactly_once" or transaction_id or not read_columns(connection, name):
        return
    _, is_own = Statements(connection, name).row("init.owner", {"table": name.text()})
    if is_own and (cost := cost_of_transaction_id(connection, name)) is not None:
        raise ConfigurationError(
            f"{lacks_transaction_ids(name)}. Set delivery: at_least_once; or give --transaction-id, which adds it "
            f"by {cost}"
        )


def _init(config: HarvestConfig, shards: int, types: OutboxTypes, options: Mapping[str, bool], output: str) -> None:
    with database(config) as connection:
        _require_harvestable(connection, config, transaction_id=options["transaction_id"])
        with _as_maker():
            done = init_outbox(
                connection,
                config.name,
                key_type=types.key,
                value_type=types.value,
                header_type=types.header,
                archive_retention=config.archive_retention if config.archives else None,
                **options,
            )
        cost = cost_of_transaction_id(connection, config.name)
        identity = OutboxTable(connection, config.name).identity()
        known = known_shards(connection, config.name)
    with _telling(done):
        done += _make_topics(config, identity.outbox_id, known)
        done += _make_shards(config, shards)
    missing = f"the column transaction_id is missing; `init --transaction-id` adds it by {cost}"
    notes = [] if cost is None else [missing]
    values = {"outbox": str(config.name), "outbox_id": identity.outbox_id, "done": done, "notes": notes}
    answer([*(done or [f"{config.name} was already complete"]), *notes], values, output=output)


@contextmanager
def _telling(done: list[str]) -> Iterator[None]:
    """If the rest fails, say what was done until then, because that stays."""
    try:
        yield
    except OutboxError:
        for line in done:
            say(line, err=True)
        raise


@contextmanager
def _as_maker() -> Iterator[None]:
    """Say what to do where the role may not make tables: no grant of ours gives that."""
    try:
        yield
    except PostgresError as error:
        if not isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            raise
        raise PostgresError(
            f"nothing was made: {reason_of(error.__cause__)}. Run this as a role that may make tables, or hand such a "
            "one what `airflow-outbox init --print` prints"
        ) from error


def _make_topics(config: HarvestConfig, outbox_id: UUID, known: int) -> list[str]:
    names = KafkaNames.of(config, outbox_id)
    # A cluster whose topics are made again may begin in the shards of earlier layouts, too.
    widest = config.model_copy(update={"shards": max(config.shards, known)})
    done = [f"created topic {topic}" for topic in make_internal_topics(widest, names)]
    if config.clusters:
        with database(config) as connection:
            new = add_clusters(connection, config.name, config.clusters)
        done += [_added(config, cluster, part) for cluster, part in new.items()]
    return done


def _print_script(config: HarvestConfig, types: OutboxTypes, options: Mapping[str, bool], output: str) -> None:
    with database(config) as connection:
        _require_harvestable(connection, config, transaction_id=options["transaction_id"])
        statements = init_script(connection, config.name, types, archives=config.archives, **options)
    if output == "json":
        answer([], {"outbox": str(config.name), "statements": statements}, output=output)
    elif statements:
        click.echo(_SCRIPT_BEGINS + "\n\n".join(statements) + "\nCOMMIT;")
    else:
        click.echo(f"-- {config.name} was already complete")


def _added(config: HarvestConfig, cluster: str, part: Part) -> str:
    if part == "owed":
        return (
            f"{config.name} has cluster {cluster}, too, which lacks what was published before. `airflow-outbox "
            f"clusters reset {cluster}` lets it count from then on"
        )
    return f"{config.name} is published to cluster {cluster}, too"


def _make_shards(config: HarvestConfig, shards: int) -> list[str]:
    """Prepare several shards, where they are wanted; an outbox that nobody has led has them at once."""
    with database(config) as connection:
        before = read_layout(connection, config.name)
        if before.shards == shards:
            return []
        remedy = f"{config.name} has {before.shards} shards: `airflow-outbox reshard {shards}` changes that"
        if len((membership := read_membership(connection, config.name)).counting) < len(membership.clusters):
            return [f"{remedy}, once all clusters count"]
        done = prepare(config, shards=shards)
        if was_led(connection, config.name):
            return [*done, remedy]
        ask_layout(connection, config.name, shards=shards)
        return [*done, f"{config.name} has {shards} shards"]


@click.command("rename")
@configuration_of_many
@click.argument("old")
@click.argument("new")
@on_behalf_of
@as_text_or_json
def rename_command(config: HarvestConfig, old: str, new: str, on_behalf_of: str | None, output: str) -> None:
    """Rename the outbox OLD to NEW: its table and all that is named after it. Stop its harvesters first.

    Use it after ALTER TABLE … RENAME, too, which renames the table alone. The configuration only says which database is
    meant.
    """
    with clear_errors():
        before, after = OutboxName.parse(old), OutboxName.parse(new)
        with database(config) as connection:
            silence = config.limits.session_timeout
            done = rename_outbox(connection, before, after, silence=silence, on_behalf_of=on_behalf_of)
    notes = [f"give {after} as outbox_table to its harvesters, and as the outbox to all who stash"]
    answer([*done, *notes], {"done": done, "notes": notes}, output=output)
