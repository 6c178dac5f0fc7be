"""`airflow-outbox replay`: publish records of the archive once more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import click

from airflow_outbox.cli.answers import answer, as_text_or_json, say
from airflow_outbox.cli.numbers import Whole
from airflow_outbox.cli.options import clear_errors, configuration, database, on_behalf_of
from airflow_outbox.cli.progress import bars
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.load_generator import require_topic
from airflow_outbox.operate.replay import HEADER, Replay, Replayed, Replayer


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an ISO 8601 time, such as 2026-01-31T12:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@click.command("replay")
@configuration
@click.option("--topic", help="Records of this topic.")
@click.option("--key", help="Records of this key; in a BYTEA column, \\x and hexadecimal digits, or text.")
@click.option("--from-id", type=Whole(0), help="From this id on.")
@click.option("--to-id", type=Whole(0), help="Up to this id.")
@click.option(
    "--since", callback=_time, help="Published at this time (ISO 8601, UTC unless it says otherwise) or later."
)
@click.option("--until", callback=_time, help="Published before this time.")
@click.option("--all", "everything", is_flag=True, help="All records in the archive.")
@click.option("--to", "to_topic", help="The topic to replay into; by default, each record's own.")
@click.option("--id", "replay_id", help="The replay's id. With the id of an interrupted replay, that one continues.")
@click.option("--header", default=HEADER, show_default=True, help="The header that carries the replay's id.")
@click.option("--transaction", type=Whole(1), default=1_000, show_default=True, help="Records per transaction.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Replay without asking.")
@on_behalf_of
@as_text_or_json
def replay_command(
    config: HarvestConfig,
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
    on_behalf_of: str | None,
    output: str,
) -> None:
    """Stash records of the archive again, so that they are published once more, each with a header that says so."""
    with clear_errors():
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
        with database(config) as connection:
            replayer = Replayer(connection, config.name, replay, on_behalf_of=on_behalf_of)
            counts = replayer.count()
            for note in require_topic(config, to_topic) if counts and to_topic is not None else []:
                say(note, err=True)
            target = f" to {to_topic}" if to_topic else ""
            meant = [f"{count} records of {name}{target}" for name, count in counts.items()]
            asked = meant or ["no records in the archive match"]
            values = {"replay_id": replay.replay_id, "records": counts}
            if output == "text":
                answer(asked, values, output=output)
            if dry_run or not counts or not (yes or _is_confirmed(replay, asked, output=output)):
                if output == "json":
                    answer([], values, output=output)
                return
            if output == "text":
                say(f"the replay's id is {replay.replay_id}. If it is interrupted, go on with --id {replay.replay_id}")
            total = sum(counts.values())
            with bars() as tell:
                done = replayer.run(
                    transaction_records=transaction, report=lambda count: tell("records stashed", count, total)
                )
    answer([_in_words(done, replay)], {**values, "stashed_now": done.now, "stashed": done.in_all}, output=output)


def _is_confirmed(replay: Replay, asked: Sequence[str], *, output: str) -> bool:
    if output == "json":  # stdout is for the answer
        for line in asked:
            say(line, err=True)
    return click.confirm(f"Replay them, as {replay.replay_id}?", err=output == "json")


def _in_words(done: Replayed, replay: Replay) -> str:
    marked = f"with the header {replay.header}: {replay.replay_id}"
    if not done.now and done.in_all:
        return (
            f"replay {replay.replay_id} had finished, so nothing was stashed now. Before, it stashed {done.in_all} "
            f"records {marked}"
        )
    before = f", and {done.in_all - done.now} were before" if done.in_all > done.now else ""
    return f"{done.now} records are stashed again{before}, {marked}"
