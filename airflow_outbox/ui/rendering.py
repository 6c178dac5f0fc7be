"""The templates, and how they show numbers, times and texts. Whatever a record contains is shown as text."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from airflow_outbox.operate.parked_requests import shown
from airflow_outbox.postgres.verdict_facts import MOST_PARKED
from airflow_outbox.ui import airflow
from airflow_outbox.ui.charts import SPARK_HEIGHT, SPARK_WIDTH, spark
from airflow_outbox.ui.contents import visible
from airflow_outbox.ui.prose import command, prose, remedy
from airflow_outbox.values.membership import POSSIBLE
from airflow_outbox.values.verdict import in_words


@cache
def assets() -> dict[str, bytes]:
    """Return the files that pages refer to, by name."""
    folder = files("airflow_outbox.ui").joinpath("assets")
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def _digest() -> str:
    """A text that changes with the files, so that browsers may keep them."""
    return sha256(b"".join(content for _, content in sorted(assets().items()))).hexdigest()[:12]


@cache
def environment() -> Environment:
    """Return the environment of all templates: every value is escaped, and a missing one is an error."""
    made = Environment(
        loader=PackageLoader("airflow_outbox.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "command": command,
        "count": count,
        "duration": duration,
        "moment": moment,
        "number": number,
        "prose": prose,
        "remedy": remedy,
        "shown": shown,
        "spark": spark,
        "visible": visible,
    }
    made.globals |= {
        "SPARK": (SPARK_WIDTH, SPARK_HEIGHT),
        "digest": _digest(),
        "MOST_PARKED": MOST_PARKED,
        "POSSIBLE": POSSIBLE,
    }
    return made


def page(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a whole page. Its links are relative, so that they work below any base path."""
    given = {"base": airflow.base_path(), "status": status, **values}
    return HTMLResponse(environment().get_template(template).render(given), status)


def count(value: int | None, most: int | None = None) -> str:
    """Return a number of things, `1,000+` where more than `most` were not counted, `–` where nobody knows it."""
    if value is None:
        return "–"
    return f"{most:,}+" if most is not None and value > most else f"{value:,}"


def number(value: float | None) -> str:
    """Return a measured number with as many digits as somebody reads."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return seconds as people say them."""
    if seconds is None:
        return "–"
    return f"{1000 * seconds:.0f} ms" if 0 < seconds < 1 else in_words(max(0.0, seconds))


def moment(time: datetime | str | None) -> str:
    """Return a time in UTC. Times that Python does not know come as Postgres writes them."""
    if time is None:
        return "–"
    return time if isinstance(time, str) else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
