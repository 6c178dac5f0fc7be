"""`airflow-outbox positions status · lookup · move · run`: consumer groups that move between clusters."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime

import click

from airflow_outbox.cli.answers import answer, as_text_or_json, say
from airflow_outbox.cli.groups import Commands
from airflow_outbox.cli.numbers import Finite, Whole
from airflow_outbox.cli.options import clear_errors, configuration
from airflow_outbox.cli.progress import waiting
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.errors import NowAndThen
from airflow_outbox.harvest.output import NdjsonEvents
from airflow_outbox.harvest.positions_process import replicate_positions
from airflow_outbox.harvest.positions_telling import PositionsTeller
from airflow_outbox.positions.operating import (
    as_values,
    described,
    lookup,
    lookup_in_words,
    move,
    move_in_words,
    planned,
    wait_until_empty,
)
from airflow_outbox.positions.process import replicator_of, require_groups, require_positions
from airflow_outbox.positions.replicator import Replicator
from airflow_outbox.values.terminal import escaped


@click.group(cls=Commands)
def positions() -> None:
    """Show consumer groups' positions on several clusters, and move groups between them."""


@positions.command("status")
@configuration
@click.option("--group", "groups", multiple=True, metavar="PATTERN", help="Only these groups; may be repeated.")
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def status_command(config: HarvestConfig, groups: tuple[str, ...], output: str) -> None:
    """Show where each group reads, how far the other clusters are behind, and why one is left alone."""
    with _replicator(config, groups) as replicator:
        look = replicator.look(commits=False)
    if output == "json":
        found = [as_values(group, news) for group, news in sorted(look.groups.items())]
        click.echo(json.dumps({"groups": found, "away": dict(look.away)}))
        return
    for cluster, reason in look.away.items():
        click.echo(escaped(f"cluster {cluster}: {reason}"))
    for group, news in sorted(look.groups.items()):
        click.echo(escaped(described(group, news)))
    if not look.groups:
        click.echo(
            "no group matches, or none is known. Kafka lists only groups that this user may DESCRIBE or READ: see "
            "`airflow-outbox check --acls table`"
        )


@positions.command("lookup")
@configuration
@click.option("--from", "source", required=True, metavar="CLUSTER", help="The cluster of the offset or time.")
@click.option("--to", "target", required=True, metavar="CLUSTER", help="The cluster to look at.")
@click.option("--topic", required=True)
@click.option("--partition", required=True, type=Whole(0, most=2**31 - 1))
@click.option("--offset", type=Whole(0), help="The next offset to read.")
@click.option("--time", "moment", metavar="TIME", help="Instead of an offset: an ISO 8601 time, UTC unless it says so.")
@as_text_or_json
def lookup_command(
    config: HarvestConfig,
    source: str,
    target: str,
    topic: str,
    partition: int,
    offset: int | None,
    moment: str | None,
    output: str,
) -> None:
    """Say where an offset, or a time, is on another cluster, and why."""
    if (offset is None) == (moment is None):
        raise click.UsageError("give --offset or --time")
    with clear_errors():
        _require_clusters(config, source, target)
        if source == target:
            raise ConfigurationError(f"--from and --to are both {source}. Give two clusters")
        since = None if moment is None else _milliseconds(moment)
    with _replicator(config, ()) as replicator:
        if since is not None:
            offset = replicator.offset_at(source, (topic, partition), since)
        assert offset is not None
        found = lookup(replicator, (topic, partition), offset, source=source, target=target)
    values = {"topic": topic, "partition": partition, "from": {source: offset}, "to": {target: found.offset}}
    lines = lookup_in_words(found, (topic, partition), offset, source=source, target=target)
    answer(lines, {**values, "why": found.why.value, "again": found.again}, output=output)


@positions.command("move")
@configuration
@click.argument("group")
@click.option("--to", "target", required=True, metavar="CLUSTER", help="Where it goes on.")
@click.option(
    "--wait",
    type=Finite(0),
    default=60.0,
    show_default=True,
    help="How many seconds to wait until it has no members.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@as_text_or_json
def move_command(config: HarvestConfig, group: str, target: str, wait: float, yes: bool, output: str) -> None:
    """Let a GROUP whose consumers are stopped go on at another cluster. Says what is read again, and asks."""
    with clear_errors():
        _require_clusters(config, target)
    with _replicator(config, (group,)) as replicator:
        with waiting(f"waiting until {group} has no members"):
            source = wait_until_empty(replicator, group, target, patience=wait)
        moves = planned(replicator, group, source=source, target=target)
        is_json = output == "json"
        for line in move_in_words(moves, source=source, target=target):
            say(line, err=is_json)
        if not yes:
            click.confirm(f"Let {group} go on at {target}?", abort=True, err=is_json)
        move(replicator, group, moves, source=source, target=target)
    values = {"group": group, "from": source, "to": target, "partitions": [asdict(each) for each in moves]}
    answer([f"start the consumers of {group} at {target}"], values, output=output)


@positions.command("run")
@configuration
def run_command(config: HarvestConfig) -> None:
    """Replicate positions, until SIGTERM. Events go to stdout as NDJSON."""
    with clear_errors():
        require_groups(config)
        asyncio.run(_run(config))


async def _run(config: HarvestConfig) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    events, now_and_then = NdjsonEvents(sys.stdout), NowAndThen()

    def complain(text: str) -> None:
        if now_and_then.passes(text):
            events("error", error=text)

    teller = PositionsTeller(config.data_source, config.name, beside_harvest=False, complain=complain)
    running = asyncio.create_task(
        replicate_positions(config, leads=lambda: not stop.is_set(), events=events, complain=complain, teller=teller)
    )
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    [ended] = await asyncio.gather(running, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


@contextmanager
def _replicator(config: HarvestConfig, groups: tuple[str, ...]) -> Iterator[Replicator]:
    with clear_errors(), closing(replicator_of(config, groups=[*groups] or None)) as replicator:
        yield replicator


def _require_clusters(config: HarvestConfig, *clusters: str) -> None:
    """Raise ConfigurationError, before anything is connected, for what the configuration does not have."""
    require_positions(config)
    for cluster in clusters:
        if cluster not in config.by_cluster():
            raise ConfigurationError(f"the outbox has no cluster {cluster}. It has {', '.join(config.by_cluster())}")


def _milliseconds(moment: str) -> int:
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        raise ConfigurationError(f"--time: {moment!r} is not an ISO 8601 time, such as 2026-01-31T12:00") from None
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
