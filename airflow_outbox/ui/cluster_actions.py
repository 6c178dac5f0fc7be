"""Requests about an outbox's clusters: detach one, attach it again, reset it, promote it.

They are those of `airflow-outbox clusters`. A promotion needs the brokers, too: it uses the connections of a Dag that
harvests the outbox.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import psycopg
from fastapi import APIRouter, Body, HTTPException, Query, Request, status
from starlette.responses import Response

from airflow_outbox.operate.clusters import promote as promote_cluster
from airflow_outbox.operate.clusters import request_attach, request_detach
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.ui import airflow
from airflow_outbox.ui.access import Asked
from airflow_outbox.ui.actions import LONGEST_REASON, UNDER_WAY, Acting, made, said
from airflow_outbox.ui.pages import pool
from airflow_outbox.ui.query_pool import PageQuery, Session
from airflow_outbox.ui.rendering import page
from airflow_outbox.values.fence import AttachHow
from airflow_outbox.values.membership import POSSIBLE, ClusterRequest, Membership

router = APIRouter()
_LONGEST_NAME = 100
_PROMOTED_WITHIN = 20.0  # seconds: a lost cluster is tried for five before anything is written
Named = Annotated[str, Query(min_length=1, max_length=_LONGEST_NAME)]
DetachReason = Annotated[str, Body(embed=True, max_length=LONGEST_REASON)]


@router.get("/ask-cluster")
async def ask(request: Request, asked: Acting, cluster: Named, what: Annotated[ClusterRequest, Query()]) -> Response:
    """Ask whether a request is meant, and say what it would do. Nothing is changed."""
    question = PageQuery(asked.key.conn_id, ("membership", asked.key.name), partial(_membership, asked), max_age=0)
    answer = await pool().ask(question)
    membership: Membership | None = answer.value
    if membership is None:
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, answer.problem)
    part = membership.parts.get(cluster)
    if part is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"The outbox has no cluster {cluster}.")
    return page(
        request,
        "ask_cluster.html",
        asked=asked,
        what=what,
        cluster=cluster,
        part=part,
        primary=membership.primary,
        is_possible=what in POSSIBLE[part],
        is_last_backup=len(membership.counting) == 2,
        longest=LONGEST_REASON,
    )


@router.post("/act/detach")
async def detach(request: Request, asked: Acting, cluster: Named, reason: DetachReason = "") -> Response:
    """Go on without a backup."""
    name, why = asked.visitor.name, reason.strip() or None
    await made(
        asked, lambda connection, outbox: request_detach(connection, outbox, cluster, reason=why, on_behalf_of=name)
    )
    return said(request, asked, f"Leaders go on without {cluster} within seconds. Postgres keeps what it misses.")


@router.post("/act/attach")
async def attach(
    request: Request, asked: Acting, cluster: Named, accept: Annotated[bool, Body(embed=True)] = False
) -> Response:
    """Ask the leader to give a cluster what it has missed."""
    await _request(asked, cluster, "accept" if accept else None)
    text = (
        f"The leader publishes to {cluster} what it has missed. The page shows when it counts again, or why it can't."
    )
    return said(request, asked, text)


@router.post("/act/reset")
async def reset(request: Request, asked: Acting, cluster: Named) -> Response:
    """Ask the leader to let an emptied cluster count from now on."""
    await _request(asked, cluster, "reset")
    return said(
        request, asked, f"The leader lets {cluster} count from now on, if its topics are empty. The page shows it."
    )


@router.post("/act/promote")
async def promote(
    request: Request, asked: Acting, cluster: Named, accept_loss: Annotated[bool, Body(embed=True)] = False
) -> Response:
    """Make another cluster the primary, if the present one is lost or not."""
    name, clusters = asked.visitor.name, asked.clusters
    if clusters is None:
        raise HTTPException(
            status.HTTP_409_CONFLICT,
            "No Dag says how the clusters of this outbox are reached. Use the command, with the harvesters' "
            f"configuration: airflow-outbox clusters promote {cluster}.",
        )

    def work(_: psycopg.Connection[Any], __: OutboxName) -> Membership:
        config = airflow.harvest_config(asked.key, clusters)
        return promote_cluster(config, cluster, accept_loss=accept_loss, on_behalf_of=name)

    done = await made(asked, work, patience=_PROMOTED_WITHIN)
    if done is UNDER_WAY:
        return said(request, asked, "This takes a while. The page shows when it is done, and the trail.")
    left_out = [each for each, part in done.parts.items() if part == "owed"]
    text = f"{cluster} is the primary. Members elect a leader there within seconds."
    if left_out:
        text += f" These do not count: {', '.join(left_out)}."
    return said(request, asked, text)


async def _request(asked: Asked, cluster: str, how: AttachHow | None) -> None:
    name = asked.visitor.name
    await made(
        asked, lambda connection, outbox: request_attach(connection, outbox, cluster, how=how, on_behalf_of=name)
    )


def _membership(asked: Asked, session: Session) -> Membership:
    return read_membership(session.connection, session.shape(asked.key.outbox).name)
