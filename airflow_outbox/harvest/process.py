"""One member as a process: the engine over the real ports, from a configuration, until told to end or done."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self

from airflow_outbox.errors import ConfigurationError, KafkaError, OutboxError
from airflow_outbox.harvest.archiving import tend_archive
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.harvester import SHARD, Harvester
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.errors import NowAndThen, RepeatedWarnings
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.kafka.names import KafkaNames, leader_partitions
from airflow_outbox.harvest.kafka.oauth import TokenSource
from airflow_outbox.harvest.kafka.producer import KafkaLog, producer_settings
from airflow_outbox.harvest.kafka.reach import reach
from airflow_outbox.harvest.kafka.record_size import client_limit
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Events, Log, TransactionalLog
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.protocol.election import Standing
from airflow_outbox.harvest.protocol.transaction_headers import StampNames
from airflow_outbox.harvest.settings import LogLevel
from airflow_outbox.harvest.troubles import StandingTroubles, TroubleTeller
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import Identity, OutboxTable
from airflow_outbox.values.verdict import TroubleKind

_LOOK_INTERVAL = 0.5
_OBJECTS_A_RECORD = 10  # a row, its lists of headers, and what is on its way to Kafka, with room to spare

EndReason = Literal["drained", "time", "stopped"]


@dataclass(frozen=True, slots=True)
class Until:
    """When a harvest ends by itself: never, once the outbox is empty, or at a time."""

    drained: bool = False
    time: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `forever`, `drained`, or an ISO 8601 time (UTC unless it says otherwise). Raises ConfigurationError."""
        if text == "forever":
            return cls()
        if text == "drained":
            return cls(drained=True)
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigurationError(f"until: {text!r} is not forever, drained or an ISO 8601 time") from None
        return cls(time=time if time.tzinfo else time.replace(tzinfo=UTC))


def log_to_stderr(level: LogLevel) -> None:
    """Let this process and its clients log to stderr, in lines; stdout is for events."""
    if level == "off":
        logging.disable()
    else:
        logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        for handler in logging.root.handlers:
            handler.addFilter(RepeatedWarnings())


def _collect_garbage_seldom(config: HarvestConfig) -> None:
    """Let Python look for reference cycles only after many more objects than can be in flight have been made.

    Each row is a few short-lived objects, none in a cycle. Scanning them again and again took longer than reading them.
    """
    gc.freeze()
    _, *others = gc.get_threshold()
    gc.set_threshold(_OBJECTS_A_RECORD * config.limits.max_in_flight_records, *others)


async def harvest(
    config: HarvestConfig, *, until: Until, events: Events, stop: asyncio.Event, grace: float
) -> EndReason:
    """Run one member until `until` or `stop`. Then finish the records in flight, for at most `grace` seconds, and leave
    the group.

    Raises ConfigurationError, PostgresError, KafkaError when it can't start. Once it has started it rides out errors.
    """
    log_to_stderr(config.log_level)
    _collect_garbage_seldom(config)
    loop = asyncio.get_running_loop()
    events = troubles = StandingTroubles(events, loop.time)
    complain = _complaints(events)
    _watch_tokens(config, complain)
    identity, name = await asyncio.to_thread(_identify, config)
    names = KafkaNames.of(config, identity.outbox_id)
    teller = TroubleTeller(config.data_source, name, troubles, await asyncio.to_thread(reach, config, names))
    telling = asyncio.create_task(teller.run())
    try:
        partitions = await asyncio.to_thread(leader_partitions, config, names)
    except KafkaError as error:
        telling.cancel()
        with contextlib.suppress(OutboxError):
            await teller.tell((TroubleKind.KAFKA, str(error)))
        raise
    events("started", outbox=str(config.name), outbox_id=str(identity.outbox_id), pid=os.getpid())
    table = PostgresTable(
        config.data_source,
        name,
        config.limits,
        archives=config.archives,
        waits_for_standbys=config.wait_for_standbys,
        outbox_id=identity.outbox_id,
        most_bytes=client_limit(producer_settings(config)),
    )

    book = TopicCache(config.kafka, producer=producer_settings(config), own=(names.leader_topic, names.ledger_topic))

    stuck = StuckIds()
    client_id = str(producer_settings(config)["client.id"])

    def throttled(seconds: float) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: harvester.throttled(seconds, client_id=client_id))

    async def new_log(*, individually: bool = False) -> Log:
        settings = producer_settings(config)
        return await KafkaLog.open(settings, book=book, individually=individually, on_throttled=throttled)

    async def new_transactional_log() -> TransactionalLog:
        return await KafkaTransactionalLog.open(
            config, names, shard=SHARD, book=book, on_throttled=throttled, stuck=stuck
        )

    # Find settings that the client refuses now, not when this member begins to lead.
    await (await (new_transactional_log if config.delivery == "exactly_once" else new_log)()).close()
    election = await asyncio.to_thread(
        NeliElection,
        config,
        topic=names.leader_topic,
        partitions=partitions,
        group_id=names.leader_group_id,
        on_error=complain,
        on_heartbeat=book.heartbeat_was_timely,
    )
    harvester = Harvester(
        table=table,
        modes=Modes(
            delivery=config.delivery,
            table=table,
            new_log=new_log,
            new_transactional_log=new_transactional_log,
            limits=config.limits,
            report=events,
            atomic=config.atomic,
            stamp_names=StampNames(**config.transaction_headers.model_dump()),
        ),
        election=election,
        limits=config.limits,
        events=events,
    )
    running = asyncio.create_task(harvester.run())
    tending = asyncio.create_task(
        tend_archive(config, leads=lambda: election.standing(SHARD) is Standing.LEADER, complain=complain)
    )
    reaching = asyncio.create_task(_reach(until, table))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, reaching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        reason = reaching.result() if reaching.done() and not reaching.cancelled() else "stopped"
        if not running.done():
            await harvester.stop(grace)
        await running
    finally:
        for task in (running, reaching, stopping, tending, telling):
            task.cancel()
        await asyncio.gather(running, reaching, stopping, tending, telling, return_exceptions=True)
    await teller.close()
    events("ended", reason=reason, published=harvester.published)
    return reason


def _complaints(events: Events) -> Callable[[str], None]:
    """Return a function that reports errors, the same text again only after a while."""
    now_and_then = NowAndThen()

    def complain(error: str) -> None:
        if now_and_then.passes(error):
            events("error", error=error, retry_in=None)

    return complain


def _watch_tokens(config: HarvestConfig, complain: Callable[[str], None]) -> None:
    source, loop = config.kafka.get("oauth_cb"), asyncio.get_running_loop()

    def failed(reason: str) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(complain, f"no new token for Kafka: {reason}. Check where oauth_cb gets it")

    if isinstance(source, TokenSource):
        source.on_failure = failed


def _identify(config: HarvestConfig) -> tuple[Identity, OutboxName]:
    """The outbox's identity, and its name with the schema in which it was found."""
    table = OutboxTable(connect(config.data_source, purpose="start"), config.name)
    try:
        _ = table.columns
        table.require_sound()
        if config.archives:
            Archive(table.connection, table.name).require()
        return table.identity(), table.name
    finally:
        table.close()


async def _reach(until: Until, table: PostgresTable) -> EndReason:
    """Return once the harvest has reached its end."""
    while True:
        if until.time is not None and datetime.now(UTC) >= until.time:
            return "time"
        if until.drained:
            try:
                if await table.is_empty():
                    return "drained"
            except OutboxError:
                pass  # the leader's own statements report what is wrong
        await asyncio.sleep(_LOOK_INTERVAL)
