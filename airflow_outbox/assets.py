"""Assets: an outbox and its topics as Airflow's assets, which have events when records are really published.

A Dag that is scheduled on one starts when there is something to read. A topic's asset has the URI that the Kafka
provider gives it, so every Dag that names that topic means the same asset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.assets import Asset
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import AssetWatcher

from airflow_outbox.triggers.watermark import OutboxWatermarkTrigger
from airflow_outbox.version_compat import require_airflow_3

if TYPE_CHECKING:
    from urllib.parse import SplitResult

require_airflow_3()
_PORT = 5432
_FORM = "Give outbox://host:port/database/outbox"


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return `outbox://host[:port]/database/outbox` in its canonical form. Raises ValueError for anything else."""
    if not uri.hostname:
        raise ValueError(f"the asset's URI has no host. {_FORM}")
    if uri.port is None:
        uri = uri._replace(netloc=f"{uri.netloc.rstrip(':')}:{_PORT}")
    if len([part for part in uri.path.split("/") if part]) != 2:
        raise ValueError(f"the asset's URI does not name a database and an outbox. {_FORM}")
    return uri


def create_asset(*, host: str, database: str, outbox: str = "outbox", port: int = _PORT, extra: Any = None) -> Asset:
    """An outbox as an asset without a watcher: to name it, for instance in `outlets`. Raises ValueError for parts that
    make no URI.
    """
    return Asset(uri=f"outbox://{host}:{port}/{database}/{outbox}", extra=extra)


def outbox_asset(
    uri: str, *, postgres_conn_id: str = PostgresHook.default_conn_name, outbox: str = "outbox", name: str | None = None
) -> Asset:
    """An outbox as an asset (`outbox://host:port/database/outbox`), with an event whenever anything was published.

    Raises ValueError for a URI that Airflow refuses.
    """
    return _watched(Asset(uri=uri, name=name or uri), postgres_conn_id=postgres_conn_id, outbox=outbox, topics=None)


def topic_asset(
    uri: str, *, postgres_conn_id: str = PostgresHook.default_conn_name, outbox: str = "outbox", name: str | None = None
) -> Asset:
    """A topic as an asset (`kafka://host:port/topic`), with an event whenever the outbox published records in it.

    Raises ValueError for a URI that Airflow refuses.
    """
    topic = uri.rpartition("/")[2]
    return _watched(Asset(uri=uri, name=name or uri), postgres_conn_id=postgres_conn_id, outbox=outbox, topics=[topic])


def _watched(asset: Asset, *, postgres_conn_id: str, outbox: str, topics: list[str] | None) -> Asset:
    trigger = OutboxWatermarkTrigger(
        postgres_conn_id=postgres_conn_id, outbox=outbox, topics=topics, asset=str(asset.uri)
    )
    watcher = AssetWatcher(name=f"{outbox} watermark", trigger=trigger)
    return Asset(name=asset.name, uri=asset.uri, watchers=[watcher])
