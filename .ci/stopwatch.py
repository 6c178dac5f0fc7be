"""The stopwatch: how long docs/first-steps.md takes on a machine that has nothing of it, by copy and paste alone.

    .venv/bin/python .ci/stopwatch.py

It clones what is committed, with an empty home, so that no package and no jar is there yet. There it runs the page's
blocks in their order and to the letter: `./dev servers`, and the steps until a consumer has read the first record. Each
line of JSON is a step with its seconds; the last one is their sum. The exit status is 1 if that is more than five
minutes. Python, Java and git have to be there, and the ports 5432 and 9092 free. A person also reads and pastes:
that is not counted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "first-steps.md"
LIMIT = 300.0
_SERVERS = "./dev servers"
_PART = re.compile(r"^## ([^\n]+)$|^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class FailedError(Exception):
    """A step of the page does not do. The message is its output."""


@dataclass(frozen=True, slots=True)
class Step:
    """What is pasted at once: the heading it stands under, the commands, and the files that are saved before."""

    heading: str
    commands: str
    files: dict[str, str]
    told: str
    """The output that the page shows."""


def main() -> int:
    """Return the exit status."""
    begin = time.monotonic()
    with TemporaryDirectory(prefix="airflow-outbox-stopwatch-") as folder:
        try:
            with timed("clone"):
                subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, f"{folder}/checkout"], check=True)
            follow(Path(folder))
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
        seconds = time.monotonic() - begin
    print(json.dumps({"step": "all", "seconds": round(seconds, 1), "limit": LIMIT}), flush=True)
    return 1 if seconds > LIMIT else 0


def follow(folder: Path) -> None:
    """Follow the page in the clone. Raises FailedError."""
    (folder / "home").mkdir()
    checkout, environment = folder / "checkout", bare(folder / "home")
    page = (checkout / "docs" / "first-steps.md").read_text("utf-8")
    exports = terminal(page)
    with servers(checkout, environment):
        for step in steps(page):
            with timed(step.heading):
                for name, text in step.files.items():
                    (checkout / name).write_text(text, "utf-8")
                script = f"{exports}\nset -e\n{step.commands}"
                done = subprocess.run(
                    ["bash", "-c", script], cwd=checkout, env=environment, capture_output=True, text=True
                )
            if done.returncode or (step.heading.startswith("7.") and done.stdout != step.told):
                raise FailedError(f"{step.commands}{done.stdout}{done.stderr}")


def steps(page: str) -> Iterator[Step]:
    """The page's blocks for bash, each with the files that stand before it and the output that stands behind it."""
    heading, files = "", dict[str, str]()
    parts = list(_PART.finditer(page))
    for part, behind in zip(parts, [*parts[1:], None], strict=True):
        if part[1]:
            heading = part[1]
        elif part[3]:
            files[part[3]] = part[4]
        elif part[2] == "bash":
            told = behind[4] if behind is not None and behind[2] == "text" else ""
            yield Step(heading, part[4], files, told)
            files = {}


def terminal(page: str) -> str:
    """What the page has pasted into the other terminal. Raises FailedError where the page no longer has it."""
    pasted = [part[4] for part in _PART.finditer(page) if part[2] == "sh"]
    if pasted[0].strip() != _SERVERS or not pasted[1].startswith("export PATH="):
        raise FailedError(f"{PAGE} does not begin with {_SERVERS}, and with the other terminal's PATH")
    return pasted[1]


def bare(home: Path) -> dict[str, str]:
    """The environment of somebody who has nothing yet: no cache, no environment of Python, no package at hand."""
    foreign = ("AIRFLOW", "PYTHON", "VIRTUAL", "PIP_CACHE", "PIP_FIND_LINKS", "PG", "SPARK", "XDG")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    kept["PATH"] = os.pathsep.join(each for each in kept["PATH"].split(os.pathsep) if not each.startswith(str(ROOT)))
    return {**kept, "HOME": str(home)}


@contextmanager
def servers(checkout: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run `./dev servers` meanwhile, from the moment it says what to do in another terminal. Raises FailedError."""
    with (checkout.parent / "servers.log").open("w+") as log, ExitStack() as stack:
        with timed(_SERVERS):
            process = subprocess.Popen(
                _SERVERS.split(),
                cwd=checkout,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
            stack.callback(ended, process)
            assert process.stdout is not None
            is_ready = any("In another terminal" in line for line in process.stdout)
        if not is_ready:
            log.seek(0)
            raise FailedError(log.read())
        yield


def ended(process: subprocess.Popen[str]) -> None:
    """End it as Ctrl-C does, with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    process.wait()


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Tell how long it took."""
    begin = time.monotonic()
    yield
    print(json.dumps({"step": step, "seconds": round(time.monotonic() - begin, 1)}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
