"""Sentences of the verdict and of errors as a page shows them: escaped, their commands set apart or behind buttons."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from urllib.parse import quote

from markupsafe import Markup, escape

from airflow_outbox.ui.access import Asked
from airflow_outbox.ui.contents import visible
from airflow_outbox.values.membership import POSSIBLE
from airflow_outbox.version_compat import takes_commands_of_providers


@dataclass(frozen=True, slots=True)
class _Button:
    """A button of the page that does what a command does. `address` is None where the button is on another page."""

    name: str
    address: str | None
    acts: bool = True


_BUTTONS: Mapping[str, _Button] = {
    "airflow-outbox resume": _Button("Resume…", "ask?what=resume"),
    "airflow-outbox handover": _Button("Hand over…", "ask?what=handover"),
    "airflow-outbox parked list": _Button("Parked records", "parked?cause=any", acts=False),
    "parked retry": _Button("Retry", None),
    "parked discard": _Button("Discard", None),
}


_OF_CLUSTER = re.compile(rf"airflow-outbox clusters ({'|'.join(chain(*POSSIBLE.values()))}) ([a-z0-9_-]+)")


def _button_of_cluster(command: str) -> _Button | None:
    """Return the button of a command about a cluster, which the page has beside its name."""
    if (found := _OF_CLUSTER.fullmatch(command)) is None:
        return None
    what, cluster = found.groups()
    return _Button(f"{what.capitalize()}…", f"ask-cluster?what={what}&cluster={quote(cluster, safe='')}")


def prose(text: str) -> Markup:
    """Return a text whose `commands` are set apart, escaped; with a capital letter, unless it begins with a name."""
    return _with_commands(text, Markup("<code>{}</code>").format)


def remedy(text: str, asked: Asked) -> Markup:
    """Return the same, where each command that the page has a button for comes behind that button's name.

    A button that the visitor may not press is not named.
    """

    def shown(command: str) -> Markup:
        code = Markup("<code>{}</code>").format(command)
        button = _BUTTONS.get(command) or _button_of_cluster(command)
        if button is None or (button.acts and not asked.may_act):
            return code
        if button.address is None:
            return Markup("<strong>{}</strong> ({})").format(button.name, code)
        address = f"{button.address}&outbox={quote(str(asked.key), safe='')}"
        how = Markup(" data-ask") if button.acts else ""
        return Markup('<a href="{}"{}>{}</a> ({})').format(address, how, button.name, code)

    return _with_commands(text, shown)


def command(text: str, asked: Asked) -> str:
    """Return a command of `airflow-outbox` for this outbox as somebody types it: by Airflow's connections, where
    Airflow has the commands.
    """
    if not takes_commands_of_providers():
        return f"airflow-outbox {text} -f FILE"
    brokers = next((use.brokers for use in asked.uses if use.brokers), ())
    words = ["--postgres-conn-id", asked.key.conn_id, *brokers, "--outbox", asked.key.name]
    return f"airflow outbox {text} {shlex.join(words)}"


def _with_commands(text: str, shown: Callable[[str], Markup]) -> Markup:
    if text.partition(" ")[0].isalpha():
        text = text[0].upper() + text[1:]
    parts = [shown(part) if place % 2 else escape(part) for place, part in enumerate(visible(text).split("`"))]
    return Markup("").join(parts)
