"""Members that make spans: around the simulated ports, as the process makes them around the real ones.

Spans change nothing: histories with them end as well as histories without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from simulation.network import Network
from simulation.statements import Server
from simulation.table import SimulatedTable
from simulation.world import Design

from airflow_outbox.harvest.leadership import Leadership
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Log, LogFactory, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.tracing import Tracing

PROVIDER = TracerProvider(shutdown_on_exit=False)


class _Traced(SimulatedTable):
    """The simulated table of a member that traces, with what it traces by."""

    def __init__(self, server: Server, network: Network) -> None:
        super().__init__(server, network)
        self.tracing = Tracing(PROVIDER, outbox="outbox")
        self.traced = self.tracing.table(self)


def _modes(
    *, table: _Traced, new_log: LogFactory, new_transactional_logs: Mapping[str, TransactionalLogFactory], **others: Any
) -> Modes:
    async def traced_log(*, individually: bool = False) -> Log:
        return table.tracing.log(await new_log(individually=individually))

    def traced(new: TransactionalLogFactory) -> TransactionalLogFactory:
        async def traced_transactional_log() -> TransactionalLog:
            return table.tracing.transactional_log(await new())

        return traced_transactional_log

    logs = {cluster: traced(new) for cluster, new in new_transactional_logs.items()}
    return Modes(table=table.traced, new_log=traced_log, new_transactional_logs=logs, **others)


def _leadership(*, table: _Traced, events: Any, **others: Any) -> Leadership:
    return Leadership(table=table.traced, events=table.tracing.events(events), **others)


def traced(**design: Any) -> Design:
    """A design whose members trace."""
    return Design(table=_Traced, modes=_modes, leadership=_leadership, **design)
