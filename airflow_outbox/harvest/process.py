"""One member as a process: the engine over the real ports, from a configuration, until told to end or done."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal, Self

from airflow_outbox.errors import ConfigurationError, KafkaError, OutboxError
from airflow_outbox.harvest.archiving import tend_archive
from airflow_outbox.harvest.assembly import Assembly, assembled, on_primary
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.health_history import HistoryKeeper
from airflow_outbox.harvest.health_monitor import HealthMonitor
from airflow_outbox.harvest.kafka.errors import NowAndThen, RepeatedWarnings, is_not_the_clients
from airflow_outbox.harvest.kafka.names import KafkaNames, leader_partitions
from airflow_outbox.harvest.kafka.oauth import TokenSource
from airflow_outbox.harvest.kafka.reachability import reachability_probes
from airflow_outbox.harvest.kafka.settings import remarks
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.member import Member
from airflow_outbox.harvest.output import to_stderr
from airflow_outbox.harvest.ports import Events, Table
from airflow_outbox.harvest.positions_process import replicate_positions
from airflow_outbox.harvest.positions_telling import PositionsTeller
from airflow_outbox.harvest.renewal import Unreached
from airflow_outbox.harvest.settings_base import LogLevel
from airflow_outbox.harvest.trouble_reporting import StandingTroubles, TroubleTeller
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.cluster_rows import read_clusters, require_known
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import Identity, OutboxTable
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.trace_context import require_opentelemetry
from airflow_outbox.values.verdict import TroubleKind

if TYPE_CHECKING:
    from airflow_outbox.harvest.endpoint import Endpoint
    from airflow_outbox.harvest.tracing import Tracing

log = logging.getLogger(__name__)

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
            raise ConfigurationError(
                f"until: {text!r} is not a time. Give forever, drained or an ISO 8601 time"
            ) from None
        return cls(time=time if time.tzinfo else time.replace(tzinfo=UTC))


def log_to_stderr(level: LogLevel) -> None:
    """Let this process and its clients log to stderr, in lines; stdout is for events. A terminal gets no lines of
    Kafka's client, unless somebody looks closely.
    """
    if level == "off":
        logging.disable()
    else:
        logging.basicConfig(
            level=level.upper(),
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            stream=to_stderr(),
            force=True,  # no handler, such as Airflow's, waits for a reader
        )
        looks_closely = level in ("info", "debug")
        for handler in logging.root.handlers:
            handler.addFilter(RepeatedWarnings(tells_retries=looks_closely))
            if sys.stderr.isatty() and not looks_closely:
                handler.addFilter(is_not_the_clients)


def tell_remarks(config: HarvestConfig) -> None:
    """Log which settings have no effect."""
    for text in remarks(config):
        log.warning("%s", text)


def collect_garbage_seldom(config: HarvestConfig) -> None:
    """Let Python look for reference cycles only after many more objects than can be in flight have been made.

    Each row is a few short-lived objects, none in a cycle. Scanning them again and again took longer than reading them.
    """
    gc.freeze()
    _, *others = gc.get_threshold()
    gc.set_threshold(_OBJECTS_A_RECORD * config.limits.max_in_flight_records, *others)


async def harvest(
    config: HarvestConfig,
    *,
    until: Until,
    events: Events,
    stop: asyncio.Event,
    grace: float,
    metrics_at: tuple[str, int] | None = None,
) -> EndReason:
    """Run one member until `until` or `stop`. Then finish the records in flight, for at most `grace` seconds, and leave
    the group. Metrics and health are served at the host and port `metrics_at`, unless None.

    Raises ConfigurationError, PostgresError, KafkaError when it can't start. Once it has started, errors don't end it.
    """
    log_to_stderr(config.log_level)
    tell_remarks(config)
    collect_garbage_seldom(config)
    loop = asyncio.get_running_loop()
    events = troubles = StandingTroubles(events, loop.time)
    complain, unreached = complaints(events), Unreached(events)
    watch_tokens(config, complain)
    tracing = await asyncio.to_thread(_tracing, config)
    identity, name = await asyncio.to_thread(_identify, config)
    names = KafkaNames.of(config, identity.outbox_id)
    measures = Measures(loop.time)

    def opened(purpose: str) -> OutboxTable:
        return OutboxTable(connect(config.data_source, purpose=purpose, waits_for_standbys=False), name)

    def heard_of(layout: int) -> None:
        if member is not None:
            member.heard_of(layout)

    member: Member | None = None
    monitor = HealthMonitor(
        opened=opened,
        thresholds=config.thresholds,
        measures=measures,
        events=events,
        on_layout=heard_of,
        on_unreached=unreached,
        parts={cluster: "primary" if cluster == identity.primary else "backup" for cluster in config.by_cluster()},
    )
    endpoint = None if metrics_at is None else _serve(*metrics_at, monitor, config, events)
    asks = await asyncio.to_thread(reachability_probes, config, names)
    teller = TroubleTeller(config.data_source, name, troubles, asks, monitor.parts, unreached)
    telling = asyncio.create_task(teller.run())

    async def assemble(identity: Identity, partitions: int) -> Assembly:
        return await assembled(
            config,
            name,
            names,
            outbox_id=identity.outbox_id,
            layout=Layout(identity.layout, identity.shards),
            partitions=partitions,
            events=events,
            measures=measures,
            complain=complain,
            tracing=tracing,
            primary=identity.primary,
            promotions=identity.promotions,
        )

    async def assemble_again() -> Assembly:
        again, _ = await asyncio.to_thread(_identify, config)
        on_it = on_primary(config, again.primary)
        return await assemble(again, await asyncio.to_thread(leader_partitions, on_it, names))

    try:
        on_it = on_primary(config, identity.primary)
        partitions = await asyncio.to_thread(leader_partitions, on_it, names)
    except KafkaError as error:
        telling.cancel()
        with contextlib.suppress(OutboxError):
            await teller.tell((TroubleKind.KAFKA, str(error), None))
        teller.end()
        await monitor.close()
        if endpoint is not None:
            await asyncio.to_thread(endpoint.close)
        raise
    events("started", outbox=str(config.name), outbox_id=str(identity.outbox_id), pid=os.getpid())
    member = Member(await assemble(identity, partitions), assemble=assemble_again, events=events)
    running = asyncio.create_task(member.run())
    history = HistoryKeeper(
        opened=opened,
        leads=lambda: member.leads() or measures.leads,
        monitor=monitor,
        measures=measures,
        thresholds=config.thresholds,
        complain=complain,
    )
    tending = asyncio.create_task(tend_archive(config, leads=member.leads, complain=complain))
    positions_teller = PositionsTeller(config.data_source, name, beside_harvest=True, complain=complain)
    replicating = asyncio.create_task(
        replicate_positions(config, leads=member.leads, events=events, complain=complain, teller=positions_teller)
    )
    reaching = asyncio.create_task(_reach(until, lambda: member.table))
    stopping = asyncio.create_task(stop.wait())
    monitoring = asyncio.create_task(monitor.run())
    being_there = asyncio.create_task(monitor.tell_presence())
    noting = asyncio.create_task(history.run())
    try:
        await asyncio.wait({running, reaching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        reason = reaching.result() if reaching.done() and not reaching.cancelled() else "stopped"
        if not running.done():
            await member.stop(grace)
        await running
    finally:
        tasks = (running, reaching, stopping, tending, replicating, telling, monitoring, being_there, noting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tracing is not None:
            await tracing.close(grace / 2)
    history.close()
    await asyncio.gather(monitor.close(), teller.close())
    events("ended", reason=reason, published=member.published)
    if endpoint is not None:
        await asyncio.to_thread(endpoint.close)
    return reason


def _serve(host: str, port: int, monitor: HealthMonitor, config: HarvestConfig, events: Events) -> Endpoint:
    from airflow_outbox.harvest.endpoint import Endpoint  # loaded only where it is asked for

    endpoint = Endpoint(host, port, monitor, outbox=config.outbox_table)
    events("serving", host=host, port=endpoint.port)
    return endpoint


def _tracing(config: HarvestConfig) -> Tracing | None:
    """The process's spans, if it is to make any. Raises ConfigurationError."""
    if not config.tracing.enabled:
        return None
    require_opentelemetry()
    from airflow_outbox.harvest.tracing import Tracing  # here, because it loads OpenTelemetry

    return Tracing.start(outbox=str(config.name))


def complaints(events: Events) -> Callable[[str], None]:
    """Return a function that reports errors, the same text again only after a while."""
    now_and_then = NowAndThen()

    def complain(error: str) -> None:
        if now_and_then.passes(error):
            events("error", error=error, retry_in=None)

    return complain


def watch_tokens(config: HarvestConfig, complain: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()

    def failed(where: str, reason: str) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(complain, f"no new token for {where}: {reason}. Check where oauth_cb gets it")

    for cluster, own in config.by_cluster().items():
        source = own.kafka.get("oauth_cb")
        if isinstance(source, TokenSource):
            source.on_failure = partial(failed, f"cluster {cluster}" if config.clusters else "Kafka")


def _identify(config: HarvestConfig) -> tuple[Identity, OutboxName]:
    """The outbox's identity, and its name with the schema in which it was found."""
    table = OutboxTable(connect(config.data_source, purpose="start"), config.name)
    try:
        _ = table.columns
        table.require_sound()
        if config.archives:
            Archive(table.connection, table.name).require()
        if config.clusters:
            require_known(config.clusters, known=read_clusters(table.connection, table.name), name=table.name)
        return table.identity(), table.name
    finally:
        table.close()


async def _reach(until: Until, table: Callable[[], Table]) -> EndReason:
    """Return once the harvest has reached its end."""
    while True:
        if until.time is not None and datetime.now(UTC) >= until.time:
            return "time"
        if until.drained:
            try:
                if await table().is_empty():
                    return "drained"
            except OutboxError:
                pass  # the leader's own statements report what is wrong
        await asyncio.sleep(_LOOK_INTERVAL)
