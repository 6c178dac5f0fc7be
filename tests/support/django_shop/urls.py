"""The shop's one view. Django opens a transaction for each request, as ATOMIC_REQUESTS says."""

from __future__ import annotations

import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from support.django_shop.models import Order

from airflow_outbox import OutboxRecord, stash


def pay(request: HttpRequest, number: int) -> JsonResponse:
    """Pay an order. A request that asks for it fails after everything is written."""
    order, _ = Order.objects.update_or_create(id=number, defaults={"state": "paid"})
    with transaction.atomic():  # a savepoint: a block in a block
        ticket = stash(
            connection,
            OutboxRecord("orders", str(order.id), json.dumps({"state": order.state, "of": "100%"})),
            autocommit="refuse",
        )
    if "fail" in request.GET:
        raise RuntimeError("the card was refused")
    return JsonResponse({"ticket": str(ticket)})


urlpatterns = [path("pay/<int:number>", pay)]
