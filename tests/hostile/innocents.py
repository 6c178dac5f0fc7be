"""Innocents around one hostile thing: whatever it is, they all come out, once and in order; the process lives; the
operator's commands answer, and name the culprit.

A new case is a line in a table of a test module of this folder, or, where rows are not what is hostile, a call:

    with innocents.harvested():
        innocents.around(lambda: …)
        innocents.stand(named="the culprit")
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner
from psycopg import sql
from psycopg.conninfo import make_conninfo
from support.harvesting import CHILD, PATIENCE, Outbox, PatienceExhaustedError, Process, wait_until

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.cli import main
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import OutboxTable

RECORDS, KEYS = 1_000, 20
REQUESTS = dict.fromkeys(("statement_timeout", "delivery_timeout", "transaction_timeout"), 3 * PATIENCE)
"""Time-outs of requests, longer than anybody waits here: who has to wait for one does not come out."""
MEMORY = 250
"""Megabytes that the process may need, whatever is in the table."""


@dataclass(slots=True)
class Innocents:
    """The innocents of one outbox, before and behind a hostile thing."""

    outbox: Outbox
    file: Path
    _process: Process | None = field(default=None)
    _written: int = 0

    @contextmanager
    def harvested(self, *, command: Sequence[str] = CHILD, **settings: Any) -> Iterator[Process]:
        """Harvest with these settings, by a process that has published some innocents when the block begins;
        `command` is another child.
        """
        config = {**self.outbox.settings, **settings}
        config["limits"] = {**REQUESTS, **config.get("limits", {})}
        of_commands = make_conninfo(self.outbox.database, connect_timeout=int(PATIENCE))
        self.file.write_text(yaml.safe_dump({**config, "data_source": of_commands}))
        self._process = Process(list(command), first_line={"config": config})
        try:
            self.write()
            self.come_out()
            yield self._process
        finally:
            self._process.end()

    def write(self, connection: psycopg.Connection[Any] | None = None, *, records: int = RECORDS // 2) -> None:
        """Write the next innocents, in a transaction of their own or in the caller's."""
        if connection is None:
            with psycopg.connect(self.outbox.database) as own:
                return self.write(own, records=records)
        numbers = range(self._written, self._written + records)
        stash(connection, [OutboxRecord(self.outbox.topic, f"k{number % KEYS}", str(number)) for number in numbers])
        self._written += records

    def around(self, hostile: str | Callable[[], object], *, within: float = PATIENCE) -> None:
        """Half of the innocents, what is hostile, the other half; then they all come out.

        `hostile` is called, or is a statement in which {topic} stands for the innocents' topic.
        """
        self.write()
        if callable(hostile):
            hostile()
        else:
            with psycopg.connect(self.outbox.database, autocommit=True) as connection:
                connection.execute(sql.SQL(hostile).format(topic=sql.Literal(self.outbox.topic)))  # type: ignore[arg-type]
        self.write()
        self.come_out(within=within)

    def come_out(self, *, within: float = PATIENCE) -> None:
        """All innocents that were written come to be in the topic, once and in order."""
        left = "SELECT count(*) FROM outbox WHERE kafka_key LIKE 'k%'"
        self.wait_until(lambda: self.outbox.query(left) == [(0,)], "innocents wait", within=within)
        assert self._lanes() == {f"k{key}": list(range(key, self._written, KEYS)) for key in range(KEYS)}

    def stand(self, *, named: str | None) -> None:
        """The process lives, and the commands answer. `parked list` and `parked show` name the culprit, `check` its
        topic, and `status` its cause.
        """
        assert self._process is not None
        assert self._process.popen.poll() is None, self.story()
        if named is not None:
            listing = "parked", "list", "--output", "json"
            self.wait_until(lambda: named in self.command(*listing), f"{named} is not parked")
            listed = strict_json(self.command(*listing))
            culprits = [row for row in listed if row["cause"] and named in json.dumps(row, ensure_ascii=False)]
            self.command("parked", "list")
            strict_json(self.command("parked", "show", "--all", "--output", "json"))
            assert named in self.command("parked", "show", "--all", "--output", "json")
            self.command("parked", "show", "--all")
            _, _, parked = " ".join(self.command("status").split()).partition("parked: ")
            assert any(f" {row['cause']}" in parked for row in culprits), parked
            found = self.command("check", wants=None)
            [parked] = [line for line in found.splitlines() if "could not be published and are parked" in line]
            assert named in parked or any(row["topic"] in parked for row in culprits), parked
        else:
            self.command("check", wants=None)
        strict_json(self.command("status", "--output", "json"))

    def stay_small(self, *, most: int = MEMORY) -> None:
        """The process has never needed more memory than it may, in megabytes."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.popen.pid}/status").read_text()
        [peak] = [int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")]
        assert peak < most, f"it needed {peak} MB"

    def command(self, *command: str, wants: int | None = 0) -> str:
        """A command's output. Control characters but for the line's end must not be among it."""
        result = CliRunner().invoke(main, [*command, "-f", str(self.file)])
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.exception)
        may_end_with = (0, 3) if command[0] == "status" and wants == 0 else (wants,)  # 3: nobody leads for a moment
        assert wants is None or result.exit_code in may_end_with, result.output
        assert all(letter.isprintable() or letter == "\n" for letter in result.output), result.output
        return result.stdout if "json" in command else result.output  # notes go beside it

    def wait_until(self, condition: Callable[[], bool], complaint: str, *, within: float = PATIENCE) -> None:
        try:
            wait_until(condition, within=within)
        except PatienceExhaustedError:
            raise PatienceExhaustedError(f"{complaint}\n{self.story()}") from None

    def story(self) -> str:
        """The last events, for a failure's reader."""
        return "" if self._process is None else "\n".join(map(str, self._process.events[-12:]))

    def _lanes(self) -> dict[str, list[int]]:
        lanes: dict[str, list[int]] = {}
        for message in self.outbox.committed():
            key, value = message.key() or b"", message.value() or b""
            if key.startswith(b"k") and value.isdigit():  # others of the topic are not innocents
                lanes.setdefault(key.decode(), []).append(int(value))
        if self.outbox.settings.get("delivery") == "at_least_once":  # what comes again is left out
            return {key: list(dict.fromkeys(numbers)) for key, numbers in lanes.items()}
        return lanes


@contextmanager
def again_and_again(write: Callable[[], object]) -> Iterator[None]:
    """Write ten times a second while the block runs, in a thread."""
    ending = threading.Event()

    def run() -> None:
        while not ending.wait(0.1):
            write()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def names_of(outbox: Outbox) -> KafkaNames:
    """The outbox's names in Kafka."""
    config = HarvestConfig.validated(outbox.settings, source="test")
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        return KafkaNames.of(config, OutboxTable(connection, OutboxName.parse("outbox")).identity().outbox_id)


def strict_json(text: str) -> Any:
    """Read JSON as its standard has it: NaN and Infinity are none."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON: {text[:500]}")

    return json.loads(text, parse_constant=refuse)
