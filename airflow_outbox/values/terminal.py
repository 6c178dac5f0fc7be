"""Records as people see them: they may hold anything, and none of it has an effect on the terminal."""

from __future__ import annotations

import json

import yaml


def escaped(text: str) -> str:
    """Return a text that a terminal only shows: escapes replace everything else, such as control characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def as_json(value: object) -> str:
    """Return JSON that a terminal only shows."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


def as_yaml(value: object) -> str:
    """Return YAML that a terminal only shows: in ASCII, if anything in it might have an effect."""
    plain = json.loads(json.dumps(value, default=str))
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text if text.replace("\n", "").isprintable() else yaml.safe_dump(plain, sort_keys=False)
