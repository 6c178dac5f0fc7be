"""Every statement of the project, named and explained in files that a DBA can review. No Python string holds SQL.

| file | what is there |
| --- | --- |
| `schema.sql` | the tables, whole |
| `migrations/` | the steps from one schema version to the next |
| `transaction_id_trigger.sql` | the triggers against rows loaded with other transactions' ids |
| `soundness.sql` | the problems that the tables must not have |
| `grants.sql` | the privileges |
| `stash_function.sql` | the function that stashes a record in one call, from any language |
| `debezium.sql`, `debezium_values.sql` | a Debezium outbox table: its trigger, publication and slot; its values |
| `connection.sql` | a session's settings, and look-ups before an outbox is known |
| `stash.sql` | what runs in a caller's own transaction |
| `fence.sql` | the fence row: who leads, and what a leader records there and beside it; the order of locks |
| `windows.sql` | exactly once: read windows, purge what is published |
| `slots.sql` | several shards: the slot of a record, and the indexes by it |
| `layout.sql` | several shards: another number of them |
| `clusters.sql` | several clusters: which ones count; what some of them lack |
| `many.sql` | many outboxes in one process: find them, keep those that rest |
| `cluster_rows.sql` | several clusters: which ones belong to an outbox |
| `marks.sql` | at least once: mark, purge, reset |
| `parked.sql` | the statements about parked records |
| `archive.sql` | the statements about the archive |
| `tickets.sql` | the statements about tickets |
| `spark.sql` | the statements of Spark's writes |
| `verdict.sql`, `trouble.sql`, `member.sql` | the facts of the verdict; what a member tells of itself |
| `positions.sql` | what replicators of positions see |
| `overview.sql` | what the page in Airflow's UI shows |
| `health_history.sql` | how the outbox was doing in the last day |
| `trail.sql` | what operators have asked for |
| `lineage.sql` | where the outbox's table is, and which topics it was published to |
| `status.sql`, `check.sql`, `adopt.sql`, `init.sql` | the operators' statements |
| `renaming.sql` | an outbox that gets another name, or whose table got one alone |
| `audit.sql`, `comparison.sql` | the statements of an audit in Postgres; its comparison in SQLite |

`{name}` in a statement stands for an identifier or a type, `%(name)s` for a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

_HEADING = re.compile(r"^-- (\w+) --$", re.MULTILINE)


def script(name: str) -> str:
    """Return the text of one SQL file, for example `schema.sql` or `migrations/001_leader.sql`."""
    return files(__package__).joinpath(name).read_text("utf-8")


def statement(name: str) -> str:
    """Return the text of one statement: `fence.take_over` is `take_over` in `fence.sql`."""
    file, _, heading = name.partition(".")
    return statements(file)[heading]


@cache
def statements(file: str) -> Mapping[str, str]:
    """Return the statements of one SQL file by name. A statement begins below its heading, `-- name --`."""
    _, *parts = _HEADING.split(script(f"{file}.sql"))
    return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


@cache
def migrations() -> Mapping[int, str]:
    """Return the migration scripts by the schema version they lead to."""
    names = sorted(entry.name for entry in files(__package__).joinpath("migrations").iterdir())
    return {int(name.split("_")[0]): script(f"migrations/{name}") for name in names if name.endswith(".sql")}
