"""The provider's description for Airflow, which reads it when it discovers its providers.

Every Airflow command loads it, so its imports stay few.
"""

from __future__ import annotations

from typing import Any

from airflow_outbox.version_compat import require_airflow_3

_INTEGRATION = "Transactional outbox"


def get_provider_info() -> dict[str, Any]:
    """The provider, as `airflow/provider_info.schema.json` has it. Raises UnsupportedAirflowError under Airflow 2.

    It uses the connection types of the Postgres and the Kafka provider, and adds none.
    """
    require_airflow_3()
    return {
        "package-name": "airflow-outbox",
        "name": _INTEGRATION,
        "description": "Events out of Postgres into Kafka through a transactional outbox, harvested under Airflow.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": _modules("airflow_outbox.hooks.outbox"),
        "operators": _modules("airflow_outbox.operators.stash", "airflow_outbox.operators.spark"),
        "sensors": _modules("airflow_outbox.sensors.harvest", "airflow_outbox.sensors.published"),
        "triggers": _modules(
            "airflow_outbox.triggers.harvest",
            "airflow_outbox.triggers.published",
            "airflow_outbox.triggers.watermark",
        ),
        "asset-uris": [
            {
                "schemes": ["outbox"],
                "handler": "airflow_outbox.assets.sanitize_uri",
                "factory": "airflow_outbox.assets.create_asset",
            }
        ],
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _INTEGRATION, "python-modules": list(names)}]
