"""What a renaming leaves in the trail."""

from __future__ import annotations

import re

from airflow_outbox.sql import script, statement


def test_the_trail_of_a_renamed_outbox_allows_what_that_of_a_new_one_does() -> None:
    """Whoever adds an action to the schema, by a migration, adds it here, too; and `rename` there."""
    new, renamed = (
        set(re.findall(r"'(\w+)'", text.partition("action IN (")[2].partition(")")[0]))
        for text in (script("schema.sql"), statement("trail.allow_rename"))
    )
    assert "pause" in new
    assert renamed == {*new, "rename"}
