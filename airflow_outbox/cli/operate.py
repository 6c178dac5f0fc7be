"""`airflow-outbox pause · resume · handover · reshard · pump`: operate a running outbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import psycopg

from airflow_outbox.cli.answers import answer, as_text_or_json, say
from airflow_outbox.cli.numbers import Finite, Whole
from airflow_outbox.cli.options import clear_errors, configuration, database, on_behalf_of, say_if_nobody_leads
from airflow_outbox.cli.progress import bars, waiting
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.load_generator import LoadPlan, pump, require_topic
from airflow_outbox.operate.reshard import request_layout, reshard
from airflow_outbox.operate.status import Leader, ask_handover, ask_pause, read_shards
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.values.verdict import in_words

_HANDOVER_PATIENCE = 30.0


@click.command()
@configuration
@on_behalf_of
@as_text_or_json
def pause(config: HarvestConfig, on_behalf_of: str | None, output: str) -> None:
    """Let the leaders mark nothing more. Records in flight are finished; stashing goes on."""
    _ask_pause(config, paused=True, on_behalf_of=on_behalf_of, output=output)


@click.command()
@configuration
@on_behalf_of
@as_text_or_json
def resume(config: HarvestConfig, on_behalf_of: str | None, output: str) -> None:
    """End a pause."""
    _ask_pause(config, paused=False, on_behalf_of=on_behalf_of, output=output)


@click.command()
@configuration
@click.option("--shard", type=click.IntRange(0, 63), help="The shard whose leader hands over; by default, all do.")
@on_behalf_of
@as_text_or_json
def handover(config: HarvestConfig, shard: int | None, on_behalf_of: str | None, output: str) -> None:
    """Let other members lead, and wait until they do."""
    done: list[Handed] = []
    with clear_errors(), database(config) as connection:
        shards = [shard] if shard is not None else list(range(read_layout(connection, config.name).shards))
        _require_leaders(connection, config, shards)
        before = {
            number: ask_handover(connection, config.name, shard=number, on_behalf_of=on_behalf_of) for number in shards
        }
        deadline = time.monotonic() + _HANDOVER_PATIENCE
        with waiting("waiting for other members to lead"):
            for number, leader in before.items():
                done.append(_handed_over(connection, config, number, leader, deadline))
                if output != "json":
                    say(f"{done[-1].leader} leads shard {number} instead of {done[-1].before}")
    if output == "json":
        answer([], {"shards": [asdict(each) for each in done]}, output=output)


@dataclass(frozen=True, slots=True)
class Handed:
    """A shard that another member leads now."""

    shard: int
    before: str | None
    leader: str


def _require_leaders(connection: psycopg.Connection[Any], config: HarvestConfig, shards: Sequence[int]) -> None:
    """Raise OutboxError where nobody leads: nothing is asked of somebody who has gone."""
    for found in read_shards(connection, config.name):
        if found.shard in shards and not found.leads(config.limits.session_timeout):
            last = f", and {found.member} was last heard from {in_words(found.silent_for or 0)} ago"
            last = last if found.member is not None and (found.silent_for or 0) > 0 else ""
            raise OutboxError(f"nobody leads shard {found.shard}{last}. Start a harvester first")


def _handed_over(
    connection: psycopg.Connection[Any], config: HarvestConfig, shard: int, before: Leader, deadline: float
) -> Handed:
    """Wait until another member leads the shard. Raises OutboxError if none does."""
    if before.member is None:
        raise OutboxError(f"nobody leads shard {shard}. Start a harvester first")
    while True:
        now = {found.shard: found for found in read_shards(connection, config.name)}.get(shard)
        if now is not None and now.view != before.view and now.member is not None:
            break
        if time.monotonic() > deadline:
            raise OutboxError(
                f"no other member has taken over shard {shard} from {before.member}. See `airflow-outbox status`"
            )
        time.sleep(0.1)
    if now.member == before.member:
        raise OutboxError(f"{now.member} leads again, because there is no other member. Start another harvester first")
    return Handed(shard, before.member, now.member)


@click.command("reshard")
@configuration
@click.argument("shards", type=click.IntRange(1, 64), required=False)
@click.option("--withdraw", is_flag=True, help="Withdraw the request for another number.")
@click.option("--wait", type=Finite(0), default=60.0, show_default=True, help="How many seconds to wait for that.")
@on_behalf_of
@as_text_or_json
def reshard_command(
    config: HarvestConfig, shards: int | None, withdraw: bool, wait: float, on_behalf_of: str | None, output: str
) -> None:
    """Give the outbox this number of SHARDS while it is harvested, and wait until it has them."""
    if (shards is None) != withdraw:
        raise click.UsageError("give a number of shards, or --withdraw")
    told: list[str] = []
    with clear_errors():
        if shards is None:
            with database(config) as connection:
                had = read_layout(connection, config.name).wanted
                if had is not None:
                    request_layout(connection, config.name, shards=None, on_behalf_of=on_behalf_of)
            done = "nobody had asked for another number of shards" if had is None else "withdrawn"
            answer([done], {"withdrawn": had}, output=output)
            return
        with database(config) as connection:
            say_if_nobody_leads(connection, config)
        with waiting(f"waiting until {config.name} has {shards} shards"):
            layout = reshard(
                config,
                shards=shards,
                patience=wait,
                tell=told.append if output == "json" else say,
                on_behalf_of=on_behalf_of,
            )
    values = {"outbox": str(config.name), "shards": layout.shards, "layout": layout.number, "done": told}
    answer([f"{config.name} has {layout.shards} shards, layout {layout.number}"], values, output=output)


@click.command("pump")
@configuration
@click.option("--topic", required=True, help="The records' topic; it must exist.")
@click.option("--records", type=Whole(1), default=10_000, show_default=True, help="How many.")
@click.option("--rate", type=Finite(0, min_open=True), help="Records a second; without it, as many as possible.")
@click.option("--keys", type=Whole(1), default=1_000, show_default=True, help="The number of keys.")
@click.option("--size", type=Whole(0, most=2**30), default=100, show_default=True, help="Characters per value.")
@click.option("--transaction", type=Whole(1), default=10, show_default=True, help="Records per transaction.")
@click.option(
    "--rollbacks",
    type=Finite(0, 1),
    default=0.0,
    show_default=True,
    help="The share of transactions that are rolled back.",
)
@as_text_or_json
def pump_command(config: HarvestConfig, output: str, **load: object) -> None:
    """Generate load: stash records as an application would."""
    wanted = LoadPlan(**load)  # type: ignore[arg-type]  # click gives what the options say
    with clear_errors():
        for note in require_topic(config, wanted.topic):
            say(note, err=True)
        begun = time.monotonic()
        with bars() as tell:
            committed = pump(config, wanted, report=lambda done: tell("records stashed", done, wanted.records))
    seconds = time.monotonic() - begun
    done = f"{committed} records stashed in {seconds:.1f} s, {committed / seconds:.0f} records/s"
    answer([done], {"records": committed, "seconds": round(seconds, 3), "topic": wanted.topic}, output=output)


def _ask_pause(config: HarvestConfig, *, paused: bool, on_behalf_of: str | None, output: str) -> None:
    with clear_errors(), database(config) as connection:
        found = read_shards(connection, config.name)
        ask_pause(connection, config.name, paused=paused, on_behalf_of=on_behalf_of)
    leads = any(shard.leads(config.limits.session_timeout) for shard in found)
    was = any(shard.paused for shard in found)
    done = "paused" if paused else "resumed"
    if was == paused:
        done = "it was paused already" if paused else "it was not paused"
    who = "leaders see it within a second" if leads else "nobody leads now; the next leader sees it"
    values = {"outbox": str(config.name), "paused": paused, "was_paused": was, "is_led": leads}
    answer([f"{done}: {who}"], values, output=output)
