"""A key, header or value of a record as people read it: text, JSON and hexadecimal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_TURNING = r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
_UNSEEN = re.compile(f"[{_CONTROLS}{_TURNING}]")
_HEX_BYTES = 4096
_ROW = 16


def visible(text: str) -> str:
    """Return a text in which escapes stand for characters that nobody sees, such as those that turn others round."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@dataclass(frozen=True, slots=True)
class Contents:
    """The beginning of something that has `size` bytes in Postgres, as Postgres gave it: text or bytes."""

    raw: str | bytes
    size: int

    @property
    def bytes(self) -> bytes:
        return self.raw if isinstance(self.raw, bytes) else self.raw.encode()

    @property
    def is_whole(self) -> bool:
        return len(self.bytes) >= self.size

    @property
    def text(self) -> str | None:
        """The text; None for bytes that are none. A character that was cut at the end is left out."""
        if isinstance(self.raw, str):
            return self.raw
        for cut in range(1 if self.is_whole else 4):
            with suppress(UnicodeDecodeError):
                return self.raw[: len(self.raw) - cut].decode()
        return None

    @property
    def json(self) -> str | None:
        """The text as JSON with its members one below the other; None where it is no object or list, or is cut."""
        if not self.is_whole or (text := self.text) is None or text.lstrip()[:1] not in ("{", "["):
            return None
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        return None

    @property
    def hex(self) -> str:
        """The first bytes in rows: place, hexadecimal digits, and the characters that are plain ASCII."""
        return "\n".join(self._rows())

    @property
    def hex_is_whole(self) -> bool:
        return self.size <= _HEX_BYTES

    def _rows(self) -> Iterator[str]:
        shown = self.bytes[:_HEX_BYTES]
        for start in range(0, len(shown), _ROW):
            row = shown[start : start + _ROW]
            plain = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
            yield f"{start:06x}  {row.hex(' '):<{3 * _ROW}} {plain}"
