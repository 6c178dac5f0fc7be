"""The connections that somebody names for a command."""

from __future__ import annotations

import pytest

from airflow_outbox.airflow_cli.run import _kafka_conn_ids
from airflow_outbox.errors import ConfigurationError


def test_each_of_several_clusters_has_a_name_and_a_connection() -> None:
    assert _kafka_conn_ids(None) == {}
    assert _kafka_conn_ids(["primary=east", "west=w=1"]) == {"primary": "east", "west": "w=1"}
    for wrong in (["west"], ["west=a", "west=b"]):
        with pytest.raises(ConfigurationError, match="--cluster west"):
            _kafka_conn_ids(wrong)
