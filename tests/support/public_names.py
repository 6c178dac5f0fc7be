"""The names that users may rely on, as the code has them now, and what a change of them would break.

Run as a program, it writes them down.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import yaml
from click import Command, Group
from pydantic import BaseModel

import airflow_outbox
from airflow_outbox.cli import main
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.spark.options import OPTION_NAMES
from airflow_outbox.values.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
HELD = ROOT / "tests" / "unit" / "public_names.json"
_DIRECTIVE = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
_EVENT = re.compile(r"^\| `(\w+)` \| (`\w+`(?:, `\w+`)*) \|", re.MULTILINE)
_OPTIONAL, _VARIADIC = "=", "*"

Names = dict[str, dict[str, list[str]]]
"""Kinds of names; in each, every name with what belongs to it: parameters, options, fields, labels."""


def public_names() -> Names:
    """All public names, by kind."""
    return {
        "python": dict(sorted(_python_names())),
        "commands": {name: _options(command) for name, command in sorted(_commands())},
        "settings": {name: [] for name in sorted(_settings(HarvestConfig))},
        "events": dict(sorted(_events())),
        "metrics": {metric.name: sorted(metric.labels) for metric in METRICS if metric.name},
        "spark": {name: [] for name in sorted(OPTION_NAMES)},
        "entry points": _entry_points(),
    }


def broken(held: Names, now: Names) -> list[str]:
    """What would break somebody who relies on the held names; Python names that are not held, too."""
    problems = []
    for kind, names in held.items():
        for name, parts in names.items():
            if name not in now.get(kind, {}):
                problems.append(f"{kind}: {name} is gone")
            elif kind == "python":
                problems += [f"{name}: {problem}" for problem in _broken_call(parts, now[kind][name])]
            else:
                problems += [f"{kind}: {name} lacks {part}" for part in parts if part not in now[kind][name]]
    unheld = now["python"].keys() - held["python"].keys()
    return [*problems, *(f"python: {name} is public now, and not held yet" for name in sorted(unheld))]


def _broken_call(held: Sequence[str], now: Sequence[str]) -> Iterator[str]:
    """What no longer works for callers: `a`, `b=` are positional, what follows `*` goes by name, `=` is optional."""
    was, by_name = _divided(held)
    positional, now_by_name = _divided(now)
    for place, parameter in enumerate(was):
        if place >= len(positional) or _bare(positional[place]) != _bare(parameter):
            yield f"its parameter {place + 1} is no longer {_bare(parameter)}"
    takes = {_bare(parameter) for parameter in (*positional, *now_by_name)}
    yield from (f"it no longer takes {_bare(each)}" for each in by_name if _bare(each) not in takes)
    optional = {_bare(each) for each in (*held,) if each.endswith(_OPTIONAL)}
    for parameter in (*positional, *now_by_name):
        is_known = _bare(parameter) in {_bare(each) for each in held}
        if not parameter.endswith(_OPTIONAL) and not parameter.startswith(_VARIADIC):
            if not is_known:
                yield f"it needs {parameter}, which is new"
            elif parameter in optional:
                yield f"it needs {parameter}, which was optional"


def _divided(parameters: Sequence[str]) -> tuple[list[str], list[str]]:
    place = next((n for n, each in enumerate(parameters) if each.startswith(_VARIADIC)), len(parameters))
    return list(parameters[:place]), [each for each in parameters[place:] if each != _VARIADIC]


def _bare(parameter: str) -> str:
    return parameter.removesuffix(_OPTIONAL)


def _python_names() -> Iterator[tuple[str, list[str]]]:
    """What the package exports, and what the reference has, with what the reference shows of it."""
    yield from ((f"airflow_outbox.{name}", []) for name in airflow_outbox.__all__)
    for page in sorted(REFERENCE.glob("*.md")):
        for dotted, options in _DIRECTIVE.findall(page.read_text("utf-8")):
            members = (yaml.safe_load(options) or {}).get("options", {}).get("members", True)
            yield from _described(dotted, resolve_name(dotted), members)


def _described(dotted: str, thing: Any, members: bool | list[str]) -> Iterator[tuple[str, list[str]]]:
    if isinstance(thing, ModuleType):
        for name, each in vars(thing).items():
            if getattr(each, "__module__", None) == thing.__name__ and _is_shown(name, members):
                yield from _described(f"{dotted}.{name}", each, True)
        return
    if inspect.isclass(thing) and issubclass(thing, Enum):
        yield dotted, [each.name + _OPTIONAL for each in thing]
        return
    yield dotted, _parameters(thing)
    if inspect.isclass(thing):
        for name, each in vars(thing).items():
            if inspect.isfunction(each) and _is_shown(name, members):
                yield f"{dotted}.{name}", _parameters(each)


def _is_shown(name: str, members: bool | list[str]) -> bool:
    return name in members if isinstance(members, list) else members and not name.startswith("_")


def _parameters(thing: Any) -> list[str]:
    try:
        signature = inspect.signature(thing)
    except ValueError:  # a class whose constructor is Python's own
        return []
    written: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            written.append(_VARIADIC + parameter.name)
        elif parameter.kind is parameter.VAR_KEYWORD:
            written.append(2 * _VARIADIC + parameter.name)
        else:
            if parameter.kind is parameter.KEYWORD_ONLY and not any(each.startswith(_VARIADIC) for each in written):
                written.append(_VARIADIC)
            written.append(parameter.name + (_OPTIONAL if parameter.default is not parameter.empty else ""))
    return written


def _commands() -> Iterator[tuple[str, Command]]:
    for name, command in main.commands.items():
        yield name, command
        if isinstance(command, Group):
            yield from ((f"{name} {below}", each) for below, each in command.commands.items())


def _options(command: Command) -> list[str]:
    return sorted({option for parameter in command.params for option in parameter.opts})


def _settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            yield from _settings(group, f"{prefix}{name}.")
        else:
            yield prefix + name


def _events() -> Iterator[tuple[str, list[str]]]:
    text = (REFERENCE / "events.md").read_text("utf-8")
    yield from ((name, sorted(re.findall(r"`(\w+)`", fields))) for name, fields in _EVENT.findall(text))


def _entry_points() -> dict[str, list[str]]:
    project: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "scripts": sorted(project["scripts"]),
        "extras": sorted(project["optional-dependencies"].keys() - {"browser", "demo", "dev"}),
    }


if __name__ == "__main__":
    HELD.write_text(json.dumps(public_names(), indent=1) + "\n", "utf-8")
