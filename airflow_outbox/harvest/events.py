"""Events out: one JSON object a line (NDJSON), as the child process tells its supervisor and the command its user."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TextIO


class NdjsonEvents:
    """Writes each event as a line, at once. A reader that has gone away does not stop the harvest."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: str, /, **fields: object) -> None:
        line = json.dumps({"event": event, "time": datetime.now(UTC).isoformat(timespec="milliseconds"), **fields})
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (BrokenPipeError, ValueError):
            pass
