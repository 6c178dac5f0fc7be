"""`airflow-outbox replay`: publish records of the archive once more."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import click

from airflow_outbox.cli.options import clear_errors, config_file, database
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.replay import HEADER, Replay, Replayer


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an ISO 8601 time, such as 2026-01-31T12:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@click.command("replay")
@config_file
@click.option("--topic", help="Records of this topic.")
@click.option("--key", help="Records of this key; in a BYTEA column, \\x and hexadecimal digits, or text.")
@click.option("--from-id", type=int, help="From this id on.")
@click.option("--to-id", type=int, help="Up to this id.")
@click.option(
    "--since", callback=_time, help="Published at this time (ISO 8601, UTC unless it says otherwise) or later."
)
@click.option("--until", callback=_time, help="Published before this time.")
@click.option("--all", "everything", is_flag=True, help="All records in the archive.")
@click.option("--to", "to_topic", help="The topic to replay into; by default, each record's own.")
@click.option("--id", "replay_id", help="The replay's id. With the id of an interrupted replay, that one continues.")
@click.option("--header", default=HEADER, show_default=True, help="The header that carries the replay's id.")
@click.option("--transaction", default=1_000, show_default=True, help="Records per transaction.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Replay without asking.")
def replay_command(
    path: Path,
    topic: str | None,
    key: str | None,
    from_id: int | None,
    to_id: int | None,
    since: datetime | None,
    until: datetime | None,
    everything: bool,
    to_topic: str | None,
    replay_id: str | None,
    header: str,
    transaction: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Stash records of the archive again, so that they are published once more, each with a header that says so."""
    with clear_errors():
        if transaction < 1:
            raise ConfigurationError("--transaction must be 1 or more")
        replay = Replay(
            replay_id=replay_id or uuid4().hex[:12],
            topic=topic,
            key=key,
            from_id=from_id,
            to_id=to_id,
            since=since,
            until=until,
            everything=everything,
            to_topic=to_topic,
            header=header,
        )
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            replayer = Replayer(connection, config.name, replay)
            counts = replayer.count()
            for name, count in counts.items():
                click.echo(f"{count} records of {name}{f' to {to_topic}' if to_topic else ''}")
            if not counts:
                click.echo("no records in the archive match")
            if dry_run or not counts or not (yes or click.confirm(f"Replay them, as {replay.replay_id}?")):
                return
            click.echo(
                f"the replay's id is {replay.replay_id}. If it is interrupted, continue with --id {replay.replay_id}"
            )
            stashed = replayer.run(transaction_records=transaction, report=lambda _: None)
    click.echo(f"{stashed} records are stashed again, with the header {header}: {replay.replay_id}")
