"""A town: a database with a role for each thing that is done with an outbox."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml
from click.testing import CliRunner
from support.harvesting import COMMAND

from airflow_outbox.cli import main
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres

PASSWORD = "for this test"
ROLES = ("owner", "stash", "harvest", "look", "operate", "job", "curious")


@dataclass(slots=True)
class Town:
    """A database with a role for each thing that is done with an outbox, and one that has no business here."""

    server: EmbeddedPostgres
    database: str
    folder: Path
    bootstrap: str
    topic: str
    suffix: str

    def role(self, name: str) -> str:
        return f"{name}_{self.suffix}"

    def dsn(self, name: str) -> str:
        return self.server.dsn(self.database, user=self.role(name), password=PASSWORD)

    def connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn(name), autocommit=True)

    def command(self, role: str, *words: str, status: int = 0, **more: str) -> str:
        """The output of a command that this role runs, with these settings, too."""
        file = self.folder / f"{role}.yaml"
        settings = {"data_source": self.dsn(role), "kafka": {"bootstrap.servers": self.bootstrap}, **more}
        file.write_text(yaml.safe_dump(settings))
        command, *options = words
        arguments = [*command.split(), "-f", str(file), *options]
        if command != "harvest":  # which ends its process
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == status, (result.output, result.exception)
            return result.output
        done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def make_outbox(self, **settings: str) -> None:
        self.command("owner", "init", **settings)
        granted = ("stash", "harvest", "look", "operate", "job")
        self.command("owner", "grant", *(f"--{role}={self.role(role)}" for role in granted), "--run", **settings)
