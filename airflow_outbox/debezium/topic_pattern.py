"""The router's `route.topic.regex` and `route.topic.replacement`, which are Java's, in Postgres' words.

Java and Postgres choose differently between several ways to match. Only patterns that both read alike are translated:
plain characters, classes and groups in a row, with greedy quantifiers of single characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

DEFAULT_REGEX = "(?<routedByValue>.*)"
DEFAULT_REPLACEMENT = "outbox.event.${routedByValue}"

_WHOLE = re.compile(r"\((?:\?<(?P<name>[A-Za-z][A-Za-z0-9]*)>)?\.[*+]\)")
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " \\t\\n\\x0B\\f\\r"}
_GROUP_NAME = re.compile(r"\?<([A-Za-z][A-Za-z0-9]*)>")
_QUANTIFIER = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
_SPECIAL = set(".[](){}*+?|^$\\")
_LITERAL = re.compile(r"[\w -]*")


class PatternError(ValueError):
    """A pattern, or a replacement, that is not translated. Its text says why."""


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """How a topic is made of the value that a row is routed by.

    Without a `regex` the topic is `parts`, one after the other, where None stands for the value. With one, it is the
    value in which the match is replaced by `replacement`; both are in Postgres' syntax. A value that does not match is
    the topic itself.
    """

    parts: Sequence[str | None] = ()
    regex: str | None = None
    replacement: str = ""


def translated_pattern(regex: str, replacement: str) -> TopicPattern:
    """Translate Java's pattern and replacement. Raises PatternError."""
    if whole := _WHOLE.fullmatch(regex):
        groups = {whole["name"]: 1} if whole["name"] else {}
        return TopicPattern([None if isinstance(part, int) else part for part in _parts(replacement, groups, 1)])
    body, groups, count = _Regex(regex).translated()
    pieces = [
        f"\\{part}" if isinstance(part, int) else part.replace("\\", "\\\\")
        for part in _parts(replacement, groups, count)
    ]
    return TopicPattern(regex=f"^{body}$", replacement="".join(pieces))


def _parts(replacement: str, groups: dict[str, int], count: int) -> list[str | int]:
    """The replacement as texts and numbers of groups."""
    found: list[str | int] = []
    text, place = "", 0
    while place < len(replacement):
        character = replacement[place]
        if character == "\\" and place + 1 < len(replacement):
            text, place = text + replacement[place + 1], place + 2
            continue
        if character != "$":
            text, place = text + character, place + 1
            continue
        match = re.compile(r"\$(?:\{([A-Za-z][A-Za-z0-9]*)\}|(\d))").match(replacement, place)
        number = None if match is None else groups.get(match[1]) if match[1] else int(match[2])
        if match is None or number is None or number > count:
            raise PatternError(f"the replacement {replacement!r} names a group that the pattern does not have")
        found += [text, number] if text else [number]
        text, place = "", match.end()
    return [*found, text] if text else found


class _Regex:
    """A pattern that is read from left to right."""

    def __init__(self, regex: str) -> None:
        self._regex = regex
        self._place = 0
        self._groups: dict[str, int] = {}
        self._count = 0

    def translated(self) -> tuple[str, dict[str, int], int]:
        """Return it as Postgres reads it, the numbers of its named groups, and how many groups there are."""
        self._accept("^")
        body = self._sequence(is_top=True)
        if self._place < len(self._regex):
            raise self._problem("a ')' that closes nothing")
        return body, self._groups, self._count

    def _sequence(self, *, is_top: bool = False) -> str:
        """Read up to the group's end."""
        found, begin = "", self._place
        while self._place < len(self._regex) and self._next != ")":
            if self._next == "|":
                return self._alternatives(begin, is_top=is_top)
            if is_top and self._next == "$" and self._place == len(self._regex) - 1:
                self._place += 1
                break
            found += self._item()
        return found

    def _item(self) -> str:
        if self._accept("("):
            group = self._group()
            if self._place < len(self._regex) and _QUANTIFIER.match(self._regex, self._place):
                raise self._problem("a quantifier behind a group")
            return group
        atom = self._atom()
        quantifier = _QUANTIFIER.match(self._regex, self._place)
        if quantifier is None:
            return atom
        self._place = quantifier.end()
        if self._place < len(self._regex) and self._next in "?+":
            raise self._problem(f"the quantifier {quantifier[0] + self._next!r}, which is not greedy")
        return atom + quantifier[0]

    def _group(self) -> str:
        opening = "("
        if self._regex.startswith("?:", self._place):
            self._place += 2
            opening = "(?:"
        elif named := _GROUP_NAME.match(self._regex, self._place):
            self._place = named.end()
            self._count += 1
            self._groups[named[1]] = self._count
        elif self._place < len(self._regex) and self._next == "?":
            raise self._problem("a group that looks ahead or behind, or sets flags")
        else:
            self._count += 1
        inner = self._sequence()
        if not self._accept(")"):
            raise self._problem("a '(' that is not closed")
        return f"{opening}{inner})"

    def _alternatives(self, begin: int, *, is_top: bool) -> str:
        end = self._regex.find(")", begin)
        whole = self._regex[begin : len(self._regex) if end < 0 else end]
        each = whole.split("|")
        plain = all(_LITERAL.fullmatch(one) for one in each)
        if is_top or not plain or any(one != other and other.startswith(one) for one in each for other in each):
            raise self._problem("alternatives that are not plain words, or of which one begins with another")
        self._place = begin + len(whole)
        return whole

    def _atom(self) -> str:
        character = self._next
        self._place += 1
        if character == "[":
            return self._class()
        if character == ".":
            return "[^\\n\\r]"
        if character == "\\":
            escaped = self._escape()
            return f"[{_CLASSES[escaped]}]" if escaped in _CLASSES else f"\\{escaped}"
        if character in _SPECIAL or not character.isprintable():
            raise self._problem(f"{character!r}")
        return character

    def _class(self) -> str:
        found = "[" + ("^" if self._accept("^") else "")
        begin = self._place
        while self._place < len(self._regex) and (self._next != "]" or self._place == begin):
            character = self._next
            self._place += 1
            if character == "\\":
                escaped = self._escape()
                found += _CLASSES.get(escaped, f"\\{escaped}")
            elif character in "[]&^" or not character.isprintable():
                raise self._problem(f"{character!r} in a class")
            else:
                found += character
        if not self._accept("]"):
            raise self._problem("a '[' that is not closed")
        return f"{found}]"

    def _escape(self) -> str:
        if self._place == len(self._regex):
            raise self._problem("a '\\' at the end")
        character = self._next
        self._place += 1
        if character.isalnum() and character not in _CLASSES:
            raise self._problem(f"'\\{character}'")
        return character

    @property
    def _next(self) -> str:
        return self._regex[self._place]

    def _accept(self, character: str) -> bool:
        if self._regex.startswith(character, self._place):
            self._place += 1
            return True
        return False

    def _problem(self, what: str) -> PatternError:
        return PatternError(f"the pattern {self._regex!r} has {what}, which Postgres may read differently")
