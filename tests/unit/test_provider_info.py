"""The provider's description for Airflow, and the Airflow that is refused."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from importlib.metadata import PackageNotFoundError
from importlib.resources import files

import jsonschema
import pytest

from airflow_outbox import version_compat
from airflow_outbox.errors import UnsupportedAirflowError
from airflow_outbox.provider_info import get_provider_info


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that only these distributions are installed (underscores for dashes)."""

    def version(distribution: str) -> str:
        try:
            return versions[distribution.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(distribution) from None

    monkeypatch.setattr(version_compat, "version", version)


def test_the_provider_is_described_as_airflow_wants_it() -> None:
    info = get_provider_info()
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(info, schema)
    assert info["package-name"] == importlib.metadata.metadata("airflow-outbox")["Name"]


def test_every_module_that_is_named_is_there() -> None:
    info = get_provider_info()
    for kind in ("hooks", "operators", "sensors", "triggers"):
        for module in info[kind][0]["python-modules"]:
            assert module.startswith(f"airflow_outbox.{kind}.")
            importlib.import_module(module)


def test_every_link_that_is_named_is_there() -> None:
    [link] = get_provider_info()["extra-links"]
    module, _, name = link.rpartition(".")
    assert getattr(importlib.import_module(module), name)().name == "Outbox"


@pytest.mark.parametrize("versions", [{"apache_airflow": "2.11.0"}, {}])
def test_another_airflow_is_refused_when_providers_are_discovered(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]
) -> None:
    installed(monkeypatch, **versions)
    with pytest.raises(UnsupportedAirflowError, match="needs Apache Airflow 3") as refusal:
        get_provider_info()
    assert versions.get("apache_airflow", "not installed") in str(refusal.value)


@pytest.mark.parametrize("room", ["hooks", "links", "triggers", "sensors", "operators"])
def test_another_airflow_is_refused_when_a_dag_imports_a_room(monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    module = importlib.import_module(f"airflow_outbox.{room}")
    installed(monkeypatch, apache_airflow="2.11.0")
    with pytest.raises(UnsupportedAirflowError, match=r"2\.11\.0"):
        importlib.reload(module)


@pytest.mark.parametrize("versions", [{"apache_airflow_core": "3.3.2"}, {"apache_airflow": "3.0.0"}])
def test_airflow_3_is_accepted(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    installed(monkeypatch, **versions)
    version_compat.require_airflow_3()
