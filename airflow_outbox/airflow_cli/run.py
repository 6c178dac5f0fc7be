"""Run a command of `airflow-outbox` on an outbox that Airflow's connections name."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import click

from airflow_outbox.airflow_cli.definition import CONFIGURATION
from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.config_option import VARIABLE, clear

_LASTING = ("harvest", "run")
_EXAMPLE = 'Give a JSON object, such as {"purge": "archive"}'


def run(command: click.Command, path: tuple[str, ...], given: Mapping[str, Any]) -> NoReturn:
    """Run a command with what was given for it and for the connections, and end with its status."""
    # As Airflow's own commands do: else connections in the metadata database are not looked for.
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    os.environ.pop(VARIABLE, None)  # click would prefer that file to the connections
    if command.name not in _LASTING:  # what Kafka's client tries is no answer; errors of ours say it once
        logging.getLogger("airflow_outbox").addHandler(logging.NullHandler())
        logging.getLogger("airflow_outbox").propagate = False
    configure = partial(_configured, given, lasts=command.name in _LASTING)
    command.main([*as_typed(command, given)], prog_name=" ".join(path), default_map={CONFIGURATION: configure})
    raise AssertionError("click ends the process")


def as_typed(command: click.Command, given: Mapping[str, Any]) -> Iterator[str]:
    """Return the words that somebody would type for this: click examines them as usual."""
    last = []
    for parameter in command.params:
        value = given.get(str(parameter.name))
        if value is None or value is False:
            continue
        name = parameter.opts[0]
        if not isinstance(parameter, click.Option):
            last.append(str(value))
        elif parameter.is_flag:
            yield name
        else:
            yield from (f"{name}={each}" for each in (value if parameter.multiple else [value]))
    yield from ["--", *last]


def _configured(given: Mapping[str, Any], *, lasts: bool) -> HarvestConfig:
    """Return the configuration that the connections make. Raises click.ClickException."""
    try:
        return _config(given, lasts=lasts)
    except OutboxError as error:
        raise clear(error) from error


def _config(given: Mapping[str, Any], *, lasts: bool) -> HarvestConfig:
    from airflow_outbox.hooks.outbox import OutboxHook

    hook = OutboxHook(
        postgres_conn_id=given["postgres_conn_id"],
        kafka_conn_id=given["kafka_conn_id"],
        kafka_conn_ids=_kafka_conn_ids(given.get("kafka_conn_ids")),
        outbox=given["outbox"],
    )
    try:
        settings = _settings(given["settings"])
        if lasts:
            hook.harvest_config(**settings)  # which refuses passwords that expire
        return hook.config(**settings)
    except OutboxError:
        raise
    except Exception as error:  # Airflow, its secrets backends and cloud logins raise what they like
        reason = str(error).rstrip(".")
        raise ConfigurationError(f"{hook.connections}: {reason}. Make them, or correct them, in Airflow") from error


def _kafka_conn_ids(names: Sequence[str] | None) -> dict[str, str]:
    """Return connections by the names of clusters, each given as `name=connection`."""
    found: dict[str, str] = {}
    for text in names or ():
        name, equals, conn_id = text.partition("=")
        if not equals or name in found:
            raise ConfigurationError(
                f"--cluster {text}: give each cluster's name and its connection once, such as west=kafka_west"
            )
        found[name] = conn_id
    return found


def _settings(text: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"--settings: not JSON: {error}. {_EXAMPLE}") from None
    if not isinstance(settings, dict):
        raise ConfigurationError(f"--settings: not an object. {_EXAMPLE}")
    return settings
