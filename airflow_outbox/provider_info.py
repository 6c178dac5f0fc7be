"""The provider's description for Airflow, which reads it when it discovers its providers.

Every Airflow command loads it, so its imports stay few.
"""

from __future__ import annotations

from typing import Any

from airflow_outbox.version_compat import require_airflow_3, takes_commands_of_providers

_INTEGRATION = "Transactional outbox"
_OPTIONS = {
    "outboxes": {
        "description": "More outboxes to show than those that Dags use: connection:outbox, with commas between them.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "postgres_default:outbox, shop:sales.outbox",
        "default": "",
    },
    "tabs": {
        "description": "Where each Dag and task has a tab with its outboxes: dag, task_instance, both or neither.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "dag",
        "default": "dag, task_instance",
    },
    "values": {
        "description": "The people who see values and headers of parked records: act (those who may act on the "
        "outbox) or read (everybody who may look at it).",
        "version_added": "0.1.0",
        "type": "string",
        "example": "read",
        "default": "act",
    },
}


def get_provider_info() -> dict[str, Any]:
    """The provider, as `airflow/provider_info.schema.json` has it. Raises UnsupportedAirflowError under Airflow 2.

    It uses the connection types of the Postgres and the Kafka provider, and adds none.
    """
    require_airflow_3()
    commands = {"cli": ["airflow_outbox.airflow_cli.definition.get_cli_commands"]}
    return {
        "package-name": "airflow-outbox",
        "name": _INTEGRATION,
        "description": "Events out of Postgres into Kafka through a transactional outbox, harvested under Airflow.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": _modules("airflow_outbox.hooks.outbox"),
        "operators": _modules("airflow_outbox.operators.stash", "airflow_outbox.operators.spark"),
        "sensors": _modules(
            "airflow_outbox.sensors.harvest", "airflow_outbox.sensors.positions", "airflow_outbox.sensors.published"
        ),
        "triggers": _modules(
            "airflow_outbox.triggers.harvest",
            "airflow_outbox.triggers.positions",
            "airflow_outbox.triggers.published",
            "airflow_outbox.triggers.watermark",
        ),
        "extra-links": ["airflow_outbox.links.outbox.OutboxLink"],
        "config": {"outbox": {"description": "The Outbox page in Airflow's UI.", "options": _OPTIONS}},
        "asset-uris": [
            {
                "schemes": ["outbox"],
                "handler": "airflow_outbox.assets.sanitize_uri",
                "factory": "airflow_outbox.assets.create_asset",
            }
        ],
        **(commands if takes_commands_of_providers() else {}),
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": list(names)}]
