"""`airflow-outbox pause · resume · handover · pump`: operate a running outbox."""

from __future__ import annotations

import time
from pathlib import Path

import click

from airflow_outbox.cli.options import clear_errors, config_file, database
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.load import LoadPlan, pump
from airflow_outbox.operate.status import ask_handover, ask_pause, read_status

_HANDOVER_PATIENCE = 30.0


@click.command()
@config_file
def pause(path: Path) -> None:
    """Let the leaders mark nothing more. Records in flight are finished; stashing goes on."""
    _ask_pause(path, paused=True)


@click.command()
@config_file
def resume(path: Path) -> None:
    """End a pause."""
    _ask_pause(path, paused=False)


@click.command()
@config_file
@click.option("--shard", default=0, show_default=True)
def handover(path: Path, shard: int) -> None:
    """Let another member lead, and wait until one does."""
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            before = ask_handover(connection, config.name, shard=shard)
            if before.member is None:
                raise OutboxError(f"nobody leads shard {shard}. Start a harvester first")
            deadline = time.monotonic() + _HANDOVER_PATIENCE
            while time.monotonic() < deadline:
                now = read_status(connection, config.name).shards[shard]
                if now.view != before.view:
                    break
                time.sleep(0.1)
            else:
                raise OutboxError(
                    f"no other member has taken over shard {shard} from {before.member}. See `airflow-outbox status`"
                )
    if now.member == before.member:
        raise OutboxError(f"{now.member} leads again, because there is no other member. Start another harvester first")
    click.echo(f"{now.member} leads shard {shard} instead of {before.member}")


@click.command("pump")
@config_file
@click.option("--topic", required=True, help="The records' topic; it must exist.")
@click.option("--records", default=10_000, show_default=True, help="How many.")
@click.option("--rate", type=float, help="Records per second; by default, as many as possible.")
@click.option("--keys", default=1_000, show_default=True, help="The number of keys.")
@click.option("--size", default=100, show_default=True, help="Characters per value.")
@click.option("--transaction", default=10, show_default=True, help="Records per transaction.")
@click.option("--rollbacks", default=0.0, show_default=True, help="The share of transactions that are rolled back.")
def pump_command(path: Path, **load: object) -> None:
    """Generate load: stash records as an application would."""
    begun = time.monotonic()
    with clear_errors():
        wanted = LoadPlan(**load)  # type: ignore[arg-type]  # click gives what the options say
        committed = pump(HarvestConfig.from_yaml(path), wanted, report=lambda _: None)
    seconds = time.monotonic() - begun
    click.echo(f"{committed} records stashed in {seconds:.1f} s, {committed / seconds:.0f} records/s")


def _ask_pause(path: Path, *, paused: bool) -> None:
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            ask_pause(connection, config.name, paused=paused)
    click.echo("paused: leaders see it within a second" if paused else "resumed: leaders see it within a second")
