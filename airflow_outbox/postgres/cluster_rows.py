"""Which clusters belong to an outbox, as Postgres says. `sql/cluster_rows.sql` has the statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import psycopg

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.membership import Part


def read_clusters(connection: psycopg.Connection[Any], name: OutboxName) -> Sequence[str]:
    """Return the names of the clusters to which the outbox is published. Raises PostgresError."""
    return [cluster for (cluster,) in Statements(connection, located(connection, name)).rows("cluster_rows.known")]


def require_known(clusters: Iterable[str], *, known: Iterable[str], name: OutboxName) -> None:
    """Raise ConfigurationError if the outbox is not published to one of these clusters."""
    if unknown := [cluster for cluster in clusters if cluster not in {*known}]:
        raise ConfigurationError(
            f"{name} is not published to cluster {' and '.join(unknown)}, which the configuration names. Run "
            "`airflow-outbox init`, or leave it out"
        )


def add_clusters(connection: psycopg.Connection[Any], name: OutboxName, clusters: Iterable[str]) -> Mapping[str, Part]:
    """Give the outbox these clusters. Return the parts of the new ones: backups, if it was never harvested. Otherwise
    they lack what is published, and are owed records until somebody lets them count from then on.

    Raises PostgresError.
    """
    name = located(connection, name)
    statements = Statements(connection, name)
    with translated(name), connection.transaction():
        harvested = any(is_harvested for (is_harvested,) in statements.rows("cluster_rows.lock"))
        known = read_clusters(connection, name)
        new = [cluster for cluster in clusters if cluster not in known]
        part: Part = "owed" if harvested else "backup"
        if new:
            reason = "it is new, and lacks what was published before" if harvested else None
            statements.execute("cluster_rows.add", {"clusters": new, "part": part, "reason": reason})
            statements.execute("cluster_rows.count", {"part": part})
    return dict.fromkeys(new, part)
