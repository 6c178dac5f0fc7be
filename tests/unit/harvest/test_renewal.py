"""What counts as another configuration, and how often a server is said to be out of reach."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_outbox.harvest import renewal
from airflow_outbox.harvest.renewal import Unreached, fingerprint


def test_a_certificate_that_is_made_again_under_its_name_is_another(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    settings = {"kafka": {"bootstrap.servers": "b:9093", "ssl.ca.location": str(file)}}
    missing = fingerprint(settings)
    file.write_text("old")
    first = fingerprint(settings)
    assert first != missing
    assert fingerprint(settings) == first
    os.utime(file, ns=(1, 1))
    assert fingerprint(settings) != first


def test_any_setting_counts_and_a_function_only_by_its_kind() -> None:
    assert fingerprint({"kafka": {"a": 1, "oauth_cb": lambda: 1}}) == fingerprint(
        {"kafka": {"a": 1, "oauth_cb": lambda: 2}}
    )
    assert fingerprint({"kafka": {"a": 1}}) != fingerprint({"kafka": {"a": 2}})
    assert fingerprint({"data_source": "password=a"}) != fingerprint({"data_source": "password=b"})


def test_it_is_said_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    unreached = Unreached(lambda event, /, **fields: said.append((event, fields)))
    for _ in range(3):
        unreached("refused")
    monkeypatch.setattr(renewal, "READ_INTERVAL", 0.0)
    unreached("away")
    assert said == [("unreached", {"error": "refused"}), ("unreached", {"error": "away"})]
