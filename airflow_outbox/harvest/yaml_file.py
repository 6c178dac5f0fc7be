"""Read a YAML file strictly, with values from the environment.

A key that is there twice is an error, where YAML's own reader takes the last one. `${NAME}` in a value stands for an
environment variable, and `$${` for `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_outbox.errors import ConfigurationError

_REFERENCE = re.compile(r"\$(\$\{)|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Loader(yaml.SafeLoader):
    """Refuses mappings with a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = set[str]()
        for key, _ in node.value:
            if key.value in found:
                problem = f"{key.value} is there twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
            found.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, *, environment: Mapping[str, str] = os.environ) -> object:
    """Return what a file holds. Raises ConfigurationError, which shows no values."""
    try:
        found = yaml.load(path.read_text("utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigurationError(f"can't read {path}: {error.strerror}. Give a file that can be read") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or "unreadable"
        raise ConfigurationError(f"{path}{line}: not YAML: {problem}. Correct it") from None
    return _filled(found, (), path, environment)


def _filled(value: object, within: tuple[str, ...], path: Path, environment: Mapping[str, str]) -> object:
    """Return the value with what its references stand for, which stays a text."""
    if isinstance(value, dict):
        return {key: _filled(each, (*within, str(key)), path, environment) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, within, path, environment) for each in value]
    if not isinstance(value, str):
        return value
    where = f"{path}: {'.'.join(within)}"

    def stands_for(reference: re.Match[str]) -> str:
        escaped, name, end = reference.groups()
        if escaped:
            return str(escaped)
        if not end or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{where}: what follows ${{ is not the name of an environment variable and }}. Write $${{ where a "
                "value has these two characters"
            )
        if name not in environment:
            raise ConfigurationError(f"{where}: the environment variable {name} is not set. Set it, or give the value")
        return environment[name]

    return _REFERENCE.sub(stands_for, value)
