"""The base of all settings: durations, Kafka settings, strictness, and errors that name the setting at fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _seconds(value: object) -> object:
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError("give a duration such as 100ms, 2s or 5m, or a number of seconds")
        return float(match[1]) * _SECONDS[match[2]]
    return value


Duration = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""Seconds; written as a number, or as text such as `100ms`, `2s`, `5m`."""

KafkaSettings = dict[str, str | int | float | bool | Callable[..., Any]]
"""librdkafka's settings by their own names. A callback can be given only within this process."""

_KINDS = ("str", "int", "float", "bool", "callable")
"""The kinds of a Kafka setting's value, as pydantic names them."""

_WANTED = {
    "model_type": "its settings by their names",
    "dict_type": "settings by their names",
    "list_type": "a list, such as [a, b]",
    "string_type": "a text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
}
"""The kind of value to give, by pydantic's name of the error."""

LogLevel = Literal["off", "error", "warning", "info", "debug"]


class Settings(BaseModel):
    """A group of settings. An unknown one is an error; one that is given and left empty counts as left out.

    Errors never show values, which may be secret.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_ones(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name not in names(cls)}


def names(model: type[BaseModel]) -> list[str]:
    """The settings of a group, as a file names them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def unknown_setting(name: str, *, within: Iterable[str], known: Iterable[str]) -> str:
    """The error message for an unknown setting."""
    import difflib  # here only: the child would pay for it, and need not

    path, known = list(within), list(known)
    unknown = f"unknown setting {'.'.join([*path, name])}"
    for nearest in difflib.get_close_matches(name, known, n=1):
        return f"{unknown}; the nearest known one is {'.'.join([*path, nearest])}"
    return f"{unknown}; known ones are {', '.join(known)}"


def described(error: ValidationError, model: type[BaseModel]) -> str:
    """Describe the settings at fault and their errors."""
    found = (_described(detail, model) for detail in error.errors(include_url=False, include_input=False))
    return "; ".join(dict.fromkeys(found))


def _described(detail: ErrorDetails, model: type[BaseModel]) -> str:
    *parents, name = [str(part) for part in detail["loc"]] or ["settings"]
    if name in _KINDS and parents and detail["type"] != "extra_forbidden":  # one of the kinds that it might have been
        return f"{'.'.join(parents)}: give a text, a number, true or false"
    path = ".".join([*parents, name])
    if detail["type"] == "extra_forbidden":
        return unknown_setting(name, within=parents, known=names(_group(model, parents)))
    if detail["type"] == "missing":
        return f"{path} is missing"
    if (wanted := _WANTED.get(detail["type"])) is not None:
        return f"{path}: give {wanted}"
    return f"{path}: {detail['msg'].removeprefix('Value error, ').replace('Input should be', 'it must be')}"


def _group(model: type[BaseModel], path: Iterable[str]) -> type[BaseModel]:
    """The group of settings at a path within another."""
    for part in path:
        [field] = [field for name, field in model.model_fields.items() if part in (name, field.alias)]
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, BaseModel)
        model = field.annotation
    return model
