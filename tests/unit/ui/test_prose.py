"""Commands in the verdict's sentences, and the buttons that stand for them."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airflow_outbox.ui import prose as module
from airflow_outbox.ui.access import Asked, Visitor
from airflow_outbox.ui.outboxes import OutboxKey, TaskRole, Use
from airflow_outbox.ui.prose import command, prose, remedy
from airflow_outbox.values.judging import judge
from airflow_outbox.values.verdict import Backlog, Facts, ParkedRefusals, Thresholds

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEY = OutboxKey("pg", 's."a&b"')


def asked(*, may_act: bool) -> Asked:
    return Asked(Visitor(None), KEY, (), may_act=may_act, may_see_values=may_act)


def remedy_of(facts: Facts, *, may_act: bool = True) -> str:
    return str(remedy(judge(facts, Thresholds()).remedy, asked(may_act=may_act)))


def led(**facts: object) -> Facts:
    return Facts(now=NOW, member="host:1", heard_at=NOW, **facts)  # type: ignore[arg-type]


PAUSED = led(paused=True)
IDLE = led(backlog=Backlog(3, oldest_age=500), took_over_at=NOW - timedelta(hours=1))
PARKED = led(parked={"too_large": ParkedRefusals(2, NOW, "because")})


def test_commands_in_a_sentence_are_set_apart() -> None:
    assert prose("run `a <b>` now") == "Run <code>a &lt;b&gt;</code> now"


def test_a_remedy_names_the_buttons_before_the_commands() -> None:
    outbox = "outbox=pg%3As.%22a%26b%22"
    resume = f'<a href="ask?what=resume&amp;{outbox}" data-ask>Resume…</a>'
    assert remedy_of(PAUSED) == f"{resume} (<code>airflow-outbox resume</code>) ends the pause"
    assert f'<a href="ask?what=handover&amp;{outbox}" data-ask>Hand over…</a>' in remedy_of(IDLE)
    parked = remedy_of(PARKED)
    assert f'<a href="parked?cause=any&amp;{outbox}">Parked records</a>' in parked
    assert "<strong>Retry</strong> (<code>parked retry</code>)" in parked
    assert "<strong>Discard</strong> (<code>parked discard</code>)" in parked


def test_a_command_about_a_cluster_has_the_button_of_that_cluster() -> None:
    note = "`airflow-outbox clusters attach west` publishes what it has missed"
    address = "ask-cluster?what=attach&amp;cluster=west&amp;outbox=pg%3As.%22a%26b%22"
    assert str(remedy(note, asked(may_act=True))) == (
        f'<a href="{address}" data-ask>Attach…</a> (<code>airflow-outbox clusters attach west</code>) publishes what '
        "it has missed"
    )
    for text, may_act in ((note, False), ("`airflow-outbox clusters reset NAME`", True)):
        assert "<a " not in remedy(text, asked(may_act=may_act))


def test_somebody_who_may_only_look_is_told_of_no_button_to_press() -> None:
    remedies = [remedy_of(facts, may_act=False) for facts in (PAUSED, IDLE, PARKED)]
    assert not any("data-ask" in text or "<strong>" in text for text in remedies)
    assert re.findall("<a .*?</a>", remedies[2]) == [
        '<a href="parked?cause=any&amp;outbox=pg%3As.%22a%26b%22">Parked records</a>'
    ]


def test_a_command_without_a_button_stays() -> None:
    halted = remedy_of(led(doubt="the database was restored"))
    assert "<code>airflow-outbox adopt</code>" in halted
    assert "<a " not in halted


def test_a_command_is_shown_as_somebody_types_it(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = ("--cluster", "primary=kafka one", "--cluster", "west=kafka_west")
    uses = (Use("w", "t", TaskRole.WRITES, KEY), Use("h", "t", TaskRole.HARVESTS, KEY, brokers=brokers))
    typed = shlex.split(command("adopt --reason '…'", replace(asked(may_act=True), uses=uses)))
    assert typed[:5] == ["airflow", "outbox", "adopt", "--reason", "…"]
    assert typed[5:] == ["--postgres-conn-id", "pg", *brokers, "--outbox", 's."a&b"']
    monkeypatch.setattr(module, "takes_commands_of_providers", lambda: False)
    assert command("adopt", asked(may_act=True)) == "airflow-outbox adopt -f FILE"
