"""Read the settings of a connector, or of a Connect worker, in the forms in which people keep them.

- JSON as Connect's REST interface takes it: an object of settings, or `{"name": …, "config": {…}}`;
- YAML, such as Strimzi's `KafkaConnector` (`spec: {class: …, config: {…}}`);
- Java properties, as `connect-standalone` and workers read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_outbox.errors import ConfigurationError

_PROPERTY = re.compile(r"\s*((?:\\.|[^\\=:\s])+)\s*[=:\s]\s*(.*)")
_ESCAPE = re.compile(r"\\(.)")


def read_settings(path: Path) -> dict[str, str]:
    """Return the settings by name, as texts. Raises ConfigurationError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise ConfigurationError(f"{path} can't be read: {reason}. Give a connector's configuration") from None
    if path.suffix == ".properties":
        return _properties(text)
    try:
        whole = yaml.safe_load(text)  # which reads JSON, too
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(
            f"{path} is neither JSON nor YAML: {reason}. Give a connector's configuration as Connect's REST interface "
            "takes it, or name a file of Java properties *.properties"
        ) from None
    found = _config(whole)
    if found is None:
        raise ConfigurationError(
            f'{path} holds no connector. Give an object of settings, or {{"name": …, "config": {{…}}}}'
        )
    return {str(name): _text(value) for name, value in found.items() if value is not None}


def _config(whole: Any) -> Mapping[Any, Any] | None:
    if not isinstance(whole, Mapping):
        return None
    if isinstance(spec := whole.get("spec"), Mapping):
        own = spec.get("config")
        kind = {"connector.class": spec["class"]} if "class" in spec else {}
        return {**kind, **(own if isinstance(own, Mapping) else {})}
    if isinstance(config := whole.get("config"), Mapping):
        return config
    return whole if any("." in str(name) for name in whole) else None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _properties(text: str) -> dict[str, str]:
    joined = re.sub(r"\\\n[ \t]*", "", text)
    lines = (line for line in joined.splitlines() if line.strip() and line.lstrip()[0] not in "#!")
    matches = (_PROPERTY.fullmatch(line) for line in lines)
    return {_ESCAPE.sub(r"\1", match[1]): _ESCAPE.sub(r"\1", match[2]).strip() for match in matches if match}
