"""Messages to a chat room: an outbox is no longer healthy, or is again; its harvest parks records, or fails.

Copy this file into Airflow's plugins folder, where the triggerer and Dags find it. Make a connection `outbox_chat` of
type `http` whose password is the address of the room's webhook. Then name both in the Dag:

    from outbox_alerts import ChatNotifier

    OutboxHarvestSensor(
        task_id="harvest",
        alert_callback="outbox_alerts.tell",
        on_failure_callback=ChatNotifier(text="{{ ti.task_id }} has failed: the outbox is not harvested"),
    )
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.request import Request, urlopen

from airflow.sdk import BaseHook, BaseNotifier


class ChatNotifier(BaseNotifier):
    """Posts `text`, which may be a template, to the webhook of a chat room."""

    template_fields: Sequence[str] = ("text",)

    def __init__(self, *, text: str, conn_id: str = "outbox_chat") -> None:
        super().__init__()
        self.text = text
        self.conn_id = conn_id

    def notify(self, context: Mapping[str, Any]) -> None:
        """Post the text. Raises OSError when the room can't be reached."""
        message = json.dumps({"text": self.text}).encode()
        webhook = str(BaseHook.get_connection(self.conn_id).password)
        with urlopen(Request(webhook, message, {"Content-Type": "application/json"}), timeout=10):
            pass


def tell(event: Mapping[str, Any]) -> None:
    """Post a change of an outbox's state: the `alert_callback` of a sensor or trigger."""
    if text := message(event):
        ChatNotifier(text=text).notify({})


def message(event: Mapping[str, Any]) -> str | None:
    """The text about an event (None: nothing has changed)."""
    outbox, topics = event["outbox"], ", ".join(event.get("topics", ()))
    match event["event"]:
        case "parked":
            reasons = "; ".join(why["reason"] for why in event["reasons"])
            return f"{outbox}: {event['refused']} records of {topics} are parked: {reasons}. See airflow-outbox parked"
        case "retried" if event["refused"]:
            return None  # they were parked before
        case "retried":
            return f"{outbox}: parked records of {topics} are published"
        case "discarded":
            return f"{outbox}: parked records of {topics} were discarded"
        case "verdict":
            return f"{outbox} is {event['state']}: {event['cause']}. {event['remedy']}".rstrip()
        case other:
            return f"{outbox}: {other}"
