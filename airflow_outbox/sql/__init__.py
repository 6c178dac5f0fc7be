"""Every statement of the project, named and explained in files that a DBA can review. No Python string holds SQL.

| file | what is there |
| --- | --- |
| `schema.sql` | the tables, whole |
| `migrations/` | the steps from one schema version to the next |
| `loaded_rows.sql` | the triggers against rows loaded with other transactions' ids |
| `soundness.sql` | the problems that the tables must not have |
| `grants.sql` | the privileges |
| `queries.sql` | the statements of a running outbox |
| `parked.sql` | the statements about parked records |
| `archive.sql` | the statements about the archive |
| `tickets.sql` | the statements about tickets |
| `spark.sql` | the statements of Spark's writes |
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


@cache
def statements(name: str) -> Mapping[str, str]:
    """Return the named statements of one SQL file. A statement begins below its heading, `-- name --`."""
    _, *parts = _HEADING.split(script(name))
    return {heading: text.strip() for heading, text in zip(parts[::2], parts[1::2], strict=True)}


@cache
def migrations() -> Mapping[int, str]:
    """Return the migration scripts by the schema version they lead to."""
    names = sorted(entry.name for entry in files(__package__).joinpath("migrations").iterdir())
    return {int(name.split("_")[0]): script(f"migrations/{name}") for name in names if name.endswith(".sql")}
