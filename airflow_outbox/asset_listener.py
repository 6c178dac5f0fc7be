"""A listener of Airflow's: it keeps what our assets' events say complete, and sees that a run is told each of them.

**A position moves with its event.** An asset's position (`triggers.asset_events.Position`) is stored in the transaction
that stores the event: neither is there without the other, whatever is killed, and whenever. An event that Airflow
drops, because nothing watches the asset any more, moves nothing; its records are told again when the asset is watched
again. Airflow's shared streams (3.3) can't do that: they confirm a dropped event, too, and the position would come
after the event.

**Every event is told to a run.** The scheduler's queue has one row for an asset and a Dag, which the first event adds
and later ones leave as it is. The run that it starts is told the events up to the time of that row; then the row is
deleted. Events between the first one and the scheduler's look stay untold until another event adds a row, after the
last one of a burst for ever. So whenever a run of such a Dag begins or ends, this looks for later events than its
newest run was told, and puts the row back, dated by the newest of them. The scheduler's next look starts a run that is
told exactly these.

- Only events of this provider's triggers count.
- The row is written in the transaction that changes the run's state: neither is there without the other.
- It stops by itself: each row starts a run that is told all events up to the newest, so the next look finds none.

All processes of Airflow load this module with the plugin, so it imports Airflow's models where they are needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from airflow_outbox.triggers.asset_events import Position, position_key

if TYPE_CHECKING:
    from airflow.listeners.types import AssetEvent
    from airflow.models.dagrun import DagRun
    from sqlalchemy.engine import Connection

log = logging.getLogger(__name__)


@hookimpl
def on_asset_event_emitted(asset_event: AssetEvent) -> None:
    payload = _payload(asset_event.extra)
    if payload is None or "totals" not in payload:  # an asset that harvests has no position
        return
    try:
        from airflow.state import AssetScope, get_state_backend
    except ImportError:  # before Airflow 3.3
        return
    from airflow.models.asset import AssetModel
    from airflow.settings import get_session
    from sqlalchemy import select

    asset, backend, key = asset_event.asset, get_state_backend(), position_key(payload["outbox_id"])
    session = get_session()()  # of this thread, which is storing the event
    with session.begin_nested():  # the event is stored, even if this fails
        named = select(AssetModel.id).where(AssetModel.name == asset.name, AssetModel.uri == asset.uri)
        scope = AssetScope(asset_id=session.scalars(named).one())
        stored = backend.get(scope, key, session=session)
        before = Position.read(json.loads(stored)) if stored is not None else None
        after = (before or Position(payload["incarnation"], 0)).after(payload)
        if after != before:
            backend.set(scope, key, json.dumps(after.as_json()), session=session)


@hookimpl
def on_dag_run_running(dag_run: DagRun) -> None:
    _remind(dag_run)


@hookimpl
def on_dag_run_success(dag_run: DagRun) -> None:
    _remind(dag_run)


@hookimpl
def on_dag_run_failed(dag_run: DagRun) -> None:
    _remind(dag_run)


def _payload(extra: Any) -> Mapping[str, Any] | None:
    """The payload of an event of one of this provider's triggers; None for any other `extra`."""
    payload = extra.get("payload") if isinstance(extra, Mapping) and extra.get("from_trigger") else None
    return payload if isinstance(payload, Mapping) and {"outbox", "published"} <= payload.keys() else None


def _remind(dag_run: DagRun) -> None:
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import insert
    from sqlalchemy.exc import IntegrityError
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None or dag_run.run_type != "asset_triggered":
        return
    connection = session.connection()
    for asset_id, newest in _untold(connection, dag_run.dag_id).items():
        row = {"asset_id": asset_id, "target_dag_id": dag_run.dag_id, "created_at": newest}
        try:
            with connection.begin_nested():  # a session's own would end in a commit, which the scheduler forbids
                connection.execute(insert(AssetDagRunQueue).values(row))
        except IntegrityError:  # an event has added it meanwhile
            continue
        log.info("Dag %s will be told events of asset %s up to %s", dag_run.dag_id, asset_id, newest)


def _untold(connection: Connection, dag_id: str) -> dict[int, datetime]:
    """The newest event of each asset that nothing will tell to a run of this Dag, if that one is ours."""
    from airflow.models.asset import AssetDagRunQueue, AssetEvent, DagScheduleAssetReference
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func, select

    told = select(func.max(DagRun.run_after)).where(DagRun.dag_id == dag_id, DagRun.run_type == "asset_triggered")
    queued = select(AssetDagRunQueue.asset_id).where(AssetDagRunQueue.target_dag_id == dag_id)
    scheduled = select(DagScheduleAssetReference.asset_id).where(DagScheduleAssetReference.dag_id == dag_id)
    untold = (
        select(AssetEvent.asset_id, AssetEvent.timestamp, AssetEvent.extra)
        .where(
            AssetEvent.asset_id.in_(scheduled),
            AssetEvent.asset_id.not_in(queued),
            AssetEvent.timestamp > told.scalar_subquery(),
        )
        .order_by(AssetEvent.timestamp)
    )
    return {
        event.asset_id: event.timestamp for event in connection.execute(untold) if _payload(event.extra) is not None
    }
