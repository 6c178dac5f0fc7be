"""The files of docs/deploy/ fit the program: commands, options, settings, paths of probes, Airflow's configuration."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from airflow_outbox.cli import main
from airflow_outbox.harvest import endpoint
from airflow_outbox.harvest.config import HarvestConfig

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
IMAGE = (DEPLOY / "Dockerfile").read_text("utf-8")
_UNKNOWN = "--no-such-option"


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The options of a command line, as the command itself reads them. Raises click.UsageError."""
    name, *rest = arguments
    command = main.commands[name]
    options, others, _ = command.make_parser(click.Context(command)).parse_args(rest)
    assert others == []
    return dict(options)


def yaml_documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, each with its arguments in one line."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def containers(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    template = document.get("spec", {}).get("template", {})
    return list(template.get("spec", {}).get("containers", []))


def check_probe(path: str, port: int, command: Sequence[str]) -> None:
    """A probe asks for something that the command serves, where others can reach it."""
    assert f'"{path}": self.' in inspect.getsource(endpoint)
    options = parsed(command)
    assert int(options["metrics_port"]) == port
    assert options["metrics_host"] == "0.0.0.0"


def test_a_command_line_with_an_unknown_option_is_noticed() -> None:
    with pytest.raises(click.NoSuchOption):
        parsed(["harvest", _UNKNOWN])


def test_every_file_is_on_a_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in DEPLOY.glob("*.md"))
    for file in DEPLOY.iterdir():
        if file.suffix not in {".md", ".dockerignore"}:
            assert f"]({file.name})" in pages, file.name


def test_the_image_is_made_of_what_is_there_and_runs_a_command() -> None:
    found = list(instructions(IMAGE))
    assert {name for name, _ in found} <= {
        "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "STOPSIGNAL", "USER"
    }  # fmt: skip
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    let_in = [line[1:] for line in ignored if line[0] == "!"]
    for name, rest in found:
        for source in rest.split()[:-1] if name == "COPY" else []:
            assert (ROOT / source).exists(), source
            assert source in let_in
    assert ("FROM", f"python:{min_of_classifiers('3.13')}-slim AS build") in found
    assert json.loads(dict(found)["ENTRYPOINT"]) == list(PROJECT["scripts"])
    command = json.loads(dict(found)["CMD"])
    [(path, port)] = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", IMAGE)
    check_probe(port, int(path), command)
    assert dict(found)["EXPOSE"] == path
    compile(json.loads(dict(found)["HEALTHCHECK"].partition("CMD ")[2])[2], "probe", "exec")


def min_of_classifiers(python: str) -> str:
    """That release of Python, which has to be among those that the project promises."""
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    return python


def test_compose_starts_commands_with_a_configuration_that_leads_to_its_servers() -> None:
    [compose] = yaml_documents("compose.yaml")
    services = compose["services"]
    entry, default = (json.loads(dict(instructions(IMAGE))[name]) for name in ("ENTRYPOINT", "CMD"))
    assert entry == ["airflow-outbox"]
    for service in services.values():
        if service["image"] == "airflow-outbox":
            parsed(service["command"])
            [mounted] = service["configs"]
            assert mounted["target"] == re.findall(r"AIRFLOW_OUTBOX_FILE=(\S+)", IMAGE)[0]
            assert (DEPLOY / compose["configs"][mounted["source"]]["file"]).exists()
            assert services.keys() >= service["depends_on"].keys()
    assert services["harvester"]["command"] == default
    assert (DEPLOY / services["init"]["build"]["context"] / services["init"]["build"]["dockerfile"]).exists()
    config = HarvestConfig.validated(yaml_documents("outbox.yaml")[0], source="outbox.yaml")
    bootstrap = config.by_cluster()["primary"].kafka["bootstrap.servers"]
    assert f"://{bootstrap}," in services["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    made = services["postgres"]["environment"]
    assert "host=postgres " in str(config.data_source)
    for key, variable in {"dbname": "DB", "user": "USER", "password": "PASSWORD"}.items():
        assert f"{key}={made[f'POSTGRES_{variable}']}" in str(config.data_source)


def test_kubernetes_asks_probes_that_the_harvester_serves() -> None:
    documents = yaml_documents("kubernetes.yaml")
    assert [document["kind"] for document in documents] == ["Job", "Deployment", "PodDisruptionBudget"]
    for document in documents:
        for container in containers(document):
            parsed(container["args"])
            [mount] = container["volumeMounts"]
            assert mount["mountPath"] == str(Path(re.findall(r"AIRFLOW_OUTBOX_FILE=(\S+)", IMAGE)[0]).parent)
            volumes = {volume["name"] for volume in document["spec"]["template"]["spec"]["volumes"]}
            assert mount["name"] in volumes
    deployment = documents[1]
    [harvester] = containers(deployment)
    ports = {port["name"]: port["containerPort"] for port in harvester["ports"]}
    for probe in ("startupProbe", "livenessProbe"):
        asked = harvester[probe]["httpGet"]
        check_probe(asked["path"], ports[asked["port"]], harvester["args"])
        assert harvester[probe]["timeoutSeconds"] > 5, "an answer takes at most five seconds"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (deployment["spec"]["selector"], documents[2]["spec"]["selector"]):
        assert labels.items() >= selector["matchLabels"].items()
    assert deployment["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(ports["metrics"])


def test_the_charts_values_are_about_options_that_airflow_has() -> None:
    from airflow.cli.cli_config import ARG_QUEUES
    from airflow.configuration import conf

    [values] = yaml_documents("airflow-values.yaml")
    for section, options in values["config"].items():
        for option in options:
            assert conf.get_default_value(section, option) is not None, f"[{section}] {option}"
    triggerer = values["triggerer"]["args"][-1].split()
    assert triggerer[:3] == ["exec", "airflow", "triggerer"]
    assert triggerer[3] in ARG_QUEUES.flags
    for entry in values["secret"]:
        assert entry["envName"].startswith("AIRFLOW_CONN_")
    image = dict(instructions((DEPLOY / "airflow.Dockerfile").read_text("utf-8")))
    assert image["FROM"].rpartition(":")[2] == values["images"]["airflow"]["tag"]


def test_the_unit_runs_a_command_and_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    text = (DEPLOY / "airflow-outbox@.service").read_text("utf-8")
    [(program, arguments)] = re.findall(r"^ExecStart=(\S+) (.*)$", text, re.MULTILINE)
    assert Path(program).name == "airflow-outbox"
    options = parsed(arguments.split())
    assert str(options["config"]).endswith("/outbox.yaml")
    assert "LoadCredential=outbox.yaml:/etc/airflow-outbox/%i.yaml" in text
    assert {"Unit", "Service", "Install"} == set(re.findall(r"^\[(\w+)\]$", text, re.MULTILINE))
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "airflow-outbox@.service"
        unit.write_text(text.replace(program, sys.executable))
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", unit], capture_output=True, text=True
        )
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_options_that_are_given_have_values() -> None:
    """Numbers stand as text where YAML would make a number of them, which Kubernetes refuses."""
    for document in yaml_documents("kubernetes.yaml"):
        for container in containers(document):
            assert all(isinstance(argument, str) for argument in container["args"])
            assert all(after for _, after in pairwise(container["args"]))


def test_the_token_for_msk_is_one_that_a_harvester_can_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signer is made up here; it returns what its documentation says."""
    page = (DEPLOY / "kafka-services.md").read_text("utf-8")
    [module] = re.findall(r"```python title=\"msk.py\"\n(.*?)```", page, re.DOTALL)
    [configuration] = re.findall(r"```text\n(data_source.*?oauth_cb.*?)```", page, re.DOTALL)
    (tmp_path / "msk.py").write_text(module)
    (tmp_path / "aws_msk_iam_sasl_signer.py").write_text(
        "class MSKAuthTokenProvider:\n"
        "    generate_auth_token = staticmethod(lambda region: (region, 4_102_444_800_000))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = HarvestConfig.validated(yaml.safe_load(configuration), source="the page")
    kafka = config.by_cluster()["primary"].kafka
    assert kafka["oauth_cb"](kafka["sasl.oauthbearer.config"])[:2] == ("eu-central-1", 4_102_444_800)
