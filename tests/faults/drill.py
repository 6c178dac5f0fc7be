"""A page of the docs, gone through as it stands: its commands are run, and their output is compared with the page's.

An output of `status` has no command before it: the page only says that it is so after a while. A `console` shows
what another failure would take, and is not run. Addresses are others,
and so are times, counts and members.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.harvesting import wait_until

from airflow_outbox.values.verdict import State

STATUS = "airflow-outbox status -f outbox.yaml"
_PARTS = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|^ *```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_CHANCE = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"), r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"),
    (re.compile(r"\b[a-z]\w*:\d{4,}\b"), r"[\w.-]+:\d+"),  # a member
    (re.compile(r"\(\d+\.\d s\)"), r"\([^)]+\)"),
    (re.compile(r"\b\d+ batches\b"), r"\d+ batches"),
    (re.compile(r"\b\d+\.\d s ago\b"), r"[\d.]+ \w+ ago"),
)
_LEFT_OUT = "…"


@dataclass(frozen=True, slots=True)
class Drill:
    """A page, the folder of its files, and what differs from the page: text there by text here."""

    page: Path
    folder: Path
    here: Mapping[str, str]

    def run(self, command: str) -> str:
        """The output of a command of the page."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", self._translated(command)],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        may_fail = command == STATUS and "fails: " in done.stdout + done.stderr  # while nobody leads
        assert done.returncode == 0 or may_fail, f"{command}{done.stdout}{done.stderr}"
        return done.stdout

    def follow(self, before: Mapping[str, Callable[[], object]]) -> list[str]:
        """Go through the page; `before` has what happens before the section with a heading. Return the commands run,
        and what was compared.
        """
        output, done = "", []
        for heading, language, title, text in self._parts():
            if heading:
                before.get(heading, lambda: None)()
            elif title:
                (self.folder / title).write_text(self._translated(text))
            elif language == "sh":
                output = self.run(text)
                done += text.splitlines()
            elif language == "text" and not text.startswith("Error: "):
                self._compare(text, output)
                done.append(text.splitlines()[0])
        return done

    def _compare(self, text: str, output: str) -> None:
        """Compare with the output of the last command, or wait until `status` says so."""
        is_status = text.startswith(tuple(state.words for state in State))
        if is_status and not self._is_told(text, output):
            wait_until(lambda: self._is_told(text, self.run(STATUS)), doing=lambda: self._said(text, self.run(STATUS)))
        else:
            assert self._is_told(text, output), self._said(text, output)

    def _parts(self) -> Iterator[tuple[str, str, str, str]]:
        for found in _PARTS.finditer(self.page.read_text("utf-8")):
            indent = re.match(" *", found[0])
            assert indent is not None
            text = re.sub(f"^{indent[0]}", "", found["text"] or "", flags=re.MULTILINE)
            yield found["heading"] or "", found["language"] or "", found["title"] or "", text

    def _translated(self, text: str) -> str:
        for there, here in self.here.items():
            text = text.replace(there, here)
        return text

    def _is_told(self, expected: str, output: str) -> bool:
        """Whether an output has all the lines, in their order; a line may end in what the page leaves out."""
        rest = iter(output.splitlines())
        lines = [line for line in self._translated(expected).splitlines() if line != _LEFT_OUT]
        return all(any(_as_pattern(line).fullmatch(told) for told in rest) for line in lines)

    @staticmethod
    def _said(expected: str, output: str) -> str:
        return f"the page says\n{expected}\nthe output is\n{output}"


def _as_pattern(line: str) -> re.Pattern[str]:
    """What a line of the page stands for."""
    pattern, end = "", 0
    chances = sorted(
        (found.start(), found.end(), there) for chance, there in _CHANCE for found in chance.finditer(line)
    )
    for start, stop, there in chances:
        if start >= end:
            pattern += re.escape(line[end:start]) + there
            end = stop
    pattern += re.escape(line[end:])
    escaped = re.escape(_LEFT_OUT)
    return re.compile(pattern.removesuffix(escaped) + ".*" if pattern.endswith(escaped) else pattern)
