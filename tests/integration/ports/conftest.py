"""The port `Table`, real and simulated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace

import psycopg
import pytest
from simulation.database_state import FenceRow
from simulation.table import SimulatedTable
from simulation.world import World
from support.tables_under_test import INSERT, RealWriter, SimulatedWriter, TableUnderTest, Writer

from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.membership import ask_attach
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.values.fence import LedgerRow
from airflow_outbox.values.records import MarkedRecord


def simulated_requests(world: World) -> Callable[[str, Collection[int]], None]:
    def ask(request: str, ids: Collection[int]) -> None:
        parked = world.database.state.parked
        numbers = tuple(number for number, row in parked.items() if row.record.id in ids)
        world.database.statement("ask", numbers, request)

    return ask


@pytest.fixture(params=["real", "simulated"])
async def table(request: pytest.FixtureRequest) -> AsyncIterator[TableUnderTest]:
    if request.param == "simulated":
        world = World(1)
        one, other = (SimulatedTable(world.server, world.network) for _ in range(2))
        yield TableUnderTest(
            one,
            other,
            lambda records: world.database.stash(*records),
            lambda: SimulatedWriter(world.database),
            simulated_requests(world),
            lambda: None,  # it tries again at once
            lambda clusters: world.server.set_fence(FenceRow(backups=dict.fromkeys(clusters, LedgerRow()))),
            lambda cluster: world.server.set_fence(replace(world.database.state.fence, attach=cluster)),
        )
        return
    database = request.getfixturevalue("database")
    name = OutboxName.parse("outbox")
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, name)

        def commit(records: list[MarkedRecord]) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(INSERT, [record[:6] for record in records])

        real, rival = PostgresTable(database, name, Limits()), PostgresTable(database, name, Limits())
        writers: list[RealWriter] = []

        def begin() -> Writer:
            writers.append(RealWriter(database))
            return writers[-1]

        def ask(request: str, ids: Collection[int]) -> None:
            connection.execute("UPDATE outbox_parked SET requested = %s WHERE id = ANY(%s)", (request, list(ids)))

        def elapse() -> None:
            connection.execute("UPDATE outbox_parked SET retry_at = now() WHERE retry_at > now()")

        def back_up(clusters: Collection[str]) -> None:
            add_clusters(connection, name, clusters)

        def wanted(cluster: str) -> None:
            ask_attach(connection, name, cluster=cluster)

        yield TableUnderTest(real, rival, commit, begin, ask, elapse, back_up, wanted)
        for writer in writers:
            writer.rollback()
        await real.close()
        await rival.close()
