"""What people see of records, which may hold anything: nothing of it has an effect on their terminal."""

from __future__ import annotations

import json

import yaml


def escaped(text: str) -> str:
    """A text that a terminal only shows: whatever else it might do to one, such as control characters, as escapes."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def as_json(value: object) -> str:
    """JSON that a terminal only shows."""
    return json.dumps(value, default=str).replace("\x7f", "\\u007f")


def as_yaml(value: object) -> str:
    """YAML that a terminal only shows: in ASCII, if anything in it might have an effect."""
    plain = json.loads(json.dumps(value, default=str))
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text if text.replace("\n", "").isprintable() else yaml.safe_dump(plain, sort_keys=False)
