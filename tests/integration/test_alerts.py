"""Prometheus evaluates: the alert rules go off when they should, and every panel of the dashboard shows something.

The scrapes are recorded ones, of members of real outboxes: see `tests/faults/test_scrapes.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from support.prometheus import INTERVAL, MONITORING, Condition, promtool, recorded, require

RULES = MONITORING / "alerts.yml"
HEALTHY = recorded("healthy")
BEFORE = 20
"""Scrapes of the healthy outbox, before the condition begins."""
MINUTE = 60
NEEDY = 'airflow_outbox_positions_groups{outbox="outbox",positions="left_alone"'


def changed(condition: Condition, series: str, value: str) -> Condition:
    """The condition with another value in all series whose beginning is this."""
    return {
        instance: {name: value if name.startswith(series) else old for name, old in scrape.items()}
        for instance, scrape in condition.items()
    }


CONDITIONS: dict[str, tuple[Condition, dict[int, set[str]]]] = {
    "healthy": (HEALTHY, {60 * MINUTE: set()}),
    "several shards, all healthy": (recorded("sharded"), {60 * MINUTE: set()}),
    "halted": (recorded("halted"), {0: {"AirflowOutboxHalted"}, 60 * MINUTE: {"AirflowOutboxHalted"}}),
    "stalled": (recorded("stalled"), {15: set(), 30: {"AirflowOutboxStalled"}, 60 * MINUTE: {"AirflowOutboxStalled"}}),
    "leaderless": (
        recorded("leaderless"),
        {15: set(), 30: {"AirflowOutboxWithoutLeader"}, 60 * MINUTE: {"AirflowOutboxWithoutLeader"}},
    ),
    "unknown": (recorded("unknown"), {15: set(), 30: {"AirflowOutboxUnknown"}, 60 * MINUTE: {"AirflowOutboxUnknown"}}),
    "silent": ({}, {15: set(), 30: {"AirflowOutboxSilent"}, 60 * MINUTE: {"AirflowOutboxSilent"}}),
    "lagging": (recorded("lagging"), {4 * MINUTE: set(), 5 * MINUTE: {"AirflowOutboxLagging"}}),
    "parked": (
        recorded("parked"),
        {45: set(), 60: {"AirflowOutboxRecordsParked"}, 60 * MINUTE: {"AirflowOutboxRecordsParked"}},
    ),
    "paused": (recorded("paused"), {29 * MINUTE: set(), 30 * MINUTE: {"AirflowOutboxPaused"}}),
    "two clusters, both usable": (recorded("clustered"), {60 * MINUTE: set()}),
    "held": (recorded("held"), {45: set(), 60: {"AirflowOutboxHeld"}, 60 * MINUTE: {"AirflowOutboxHeld"}}),
    "detached": (
        recorded("detached"),
        {
            4 * MINUTE: set(),
            5 * MINUTE: {"AirflowOutboxClusterDetached"},
            60 * MINUTE: {"AirflowOutboxClusterDetached"},
        },
    ),
    "detached for long": (
        changed(recorded("detached"), 'airflow_outbox_cluster_owed_age_seconds{cluster="backup"', f"{5 * 86400 + 1}.0"),
        {5 * MINUTE: {"AirflowOutboxClusterDetached", "AirflowOutboxOwedForLong"}},
    ),
    "positions that follow": (recorded("positioned"), {60 * MINUTE: set()}),
    "positions of a group that is left alone": (
        changed(recorded("positioned"), NEEDY, "1.0"),
        {4 * MINUTE: set(), 5 * MINUTE: {"AirflowOutboxPositionsNeedSomebody"}},
    ),
    "positions that nobody replicates any more": (
        changed(recorded("positioned"), "airflow_outbox_positions_age_seconds", "130.0"),
        {4 * MINUTE: set(), 5 * MINUTE: {"AirflowOutboxPositionsSilent"}},
    ),
    "one of two members gone": (
        {instance: scrape for instance, scrape in HEALTHY.items() if instance == "leader"},
        {60 * MINUTE: set()},
    ),
    "one of two members without Postgres": (
        {**HEALTHY, "standby": recorded("unknown")["standby"]},
        {60 * MINUTE: set()},
    ),
}


def after(timeline: list[tuple[Condition, int]], seconds: int) -> int:
    """So many seconds after the timeline's last condition has begun."""
    return sum(scrapes for _, scrapes in timeline[:-1]) * INTERVAL + seconds


@pytest.mark.parametrize(("condition", "wanted"), CONDITIONS.values(), ids=CONDITIONS)
def test_alerts_go_off_in_time_and_end_when_it_is_over(
    tmp_path: Path, condition: Condition, wanted: dict[int, set[str]]
) -> None:
    timeline = [(HEALTHY, BEFORE), (condition, max(wanted) // INTERVAL + 1)]
    firing = {after(timeline, seconds): alerts for seconds, alerts in wanted.items()}
    timeline.append((HEALTHY, 4))
    require(tmp_path, RULES, timeline, firing={0: set(), **firing, after(timeline, 15): set()})


def test_every_alert_goes_off_in_a_test() -> None:
    names = {rule["alert"] for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]}
    counted = {"AirflowOutboxLeadersChange", "AirflowOutboxBatchesWithoutExtents"}
    tested = {alert for _, wanted in CONDITIONS.values() for alerts in wanted.values() for alert in alerts}
    assert tested == names - counted


@pytest.mark.parametrize(("elections", "alerts"), [(8, set()), (14, {"AirflowOutboxLeadersChange"})])
def test_many_elections_in_a_short_time(tmp_path: Path, elections: int, alerts: set[str]) -> None:
    leader = {"leader": HEALTHY["leader"]}
    timeline = [(changed(leader, "airflow_outbox_elections", f"{count}.0"), 4) for count in range(1, elections + 2)]
    timeline.append((timeline[-1][0], 80))
    require(
        tmp_path, RULES, timeline, firing={30: set(), after(timeline, 0): alerts, after(timeline, 19 * MINUTE): set()}
    )


@pytest.mark.parametrize(("batches", "alerts"), [(4, set()), (40, {"AirflowOutboxBatchesWithoutExtents"})])
def test_batches_without_extents_for_a_while(tmp_path: Path, batches: int, alerts: set[str]) -> None:
    """One each quarter of a minute. A few, as after a change of leaders, need nobody."""
    leader = {"leader": recorded("positioned")["leader"]}
    series = 'airflow_outbox_batches_without_extents_total{cluster="backup"'
    timeline = [(changed(leader, series, f"{count}.0"), 1) for count in range(batches + 1)]
    timeline.append((timeline[-1][0], 40))
    require(
        tmp_path, RULES, timeline, firing={0: set(), after(timeline, 0): alerts, after(timeline, 9 * MINUTE): set()}
    )


def test_an_outbox_that_is_gone_for_good_ends_its_alert_after_a_day(tmp_path: Path) -> None:
    day = 24 * 60
    timeline: list[tuple[Condition, int]] = [(HEALTHY, 1), ({}, day + 2)]
    firing = {minutes * MINUTE: alerts for minutes, alerts in [(day - 1, {"AirflowOutboxSilent"}), (day + 1, set())]}
    require(tmp_path, RULES, timeline, firing=firing, interval=MINUTE)


def test_parked_records_are_added_up_by_cause_and_not_by_member(tmp_path: Path) -> None:
    two = changed(recorded("parked"), 'airflow_outbox_parked_records{cause="refused"', "2.0")
    told = summary_of(tmp_path, two, "AirflowOutboxRecordsParked", minutes=2)
    assert told.startswith("Records of outbox can't be published: 3.")


def summary_of(folder: Path, condition: Condition, alert: str, *, minutes: int) -> str:
    """The summary of an alert that goes off."""
    asked = {"eval_time": f"{minutes}m", "alertname": alert, "exp_alerts": [{"exp_labels": {}}]}
    with pytest.raises(AssertionError) as told:  # the only way to see what promtool has got
        require(folder, RULES, [(condition, 60)], alerts=[asked])
    [got] = re.findall(r"got:\[\n(.*?)\]", str(told.value), re.DOTALL)
    assert 'outbox="outbox"' in got
    [summary] = re.findall(r'summary="([^"]*)"', got)
    return str(summary)


@pytest.mark.parametrize(
    ("condition", "alert", "summary"),
    [
        ("lagging", "AirflowOutboxLagging", r"The oldest record of outbox has waited for \d+m \d+s"),
        ("stalled", "AirflowOutboxStalled", r"outbox is stalled: nothing is published"),
        ("held", "AirflowOutboxHeld", r"outbox waits for its cluster backup: nothing is published"),
        ("detached", "AirflowOutboxClusterDetached", r"outbox is published without its cluster backup"),
    ],
)
def test_an_alert_names_the_outbox_and_the_value(tmp_path: Path, condition: str, alert: str, summary: str) -> None:
    assert re.fullmatch(summary, summary_of(tmp_path, recorded(condition), alert, minutes=6))


def test_every_panel_shows_something(tmp_path: Path) -> None:
    """By a rule for each query: it goes off if the query finds anything."""
    panels = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))["panels"]
    queries = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        .replace("$outbox", "outbox")
        .replace("$__rate_interval", "1m")
        for panel in panels
        for target in panel["targets"]
    }
    rules = [{"alert": name.replace("{", "").replace("}", ""), "expr": query} for name, query in queries.items()]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    clusters = "Clusters that all waits for, or that are detached"
    held, detached = f"{clusters}: all waits for cluster", f"{clusters}: cluster is detached"
    behind = {"Batches behind, by cluster: cluster", "Oldest batch missed, by cluster: cluster"}
    of_positions = {name for name in (rule["alert"] for rule in rules) if "ositions" in name or "extents" in name}
    empty = {"Waiting and in flight: more than this waits", "Shards that are not healthy: shard shard: state"}
    one = {held, detached} | behind  # there is one cluster
    firing = {rule["alert"] for rule in rules} - empty - one - of_positions
    require(tmp_path, file, [(recorded("sharded"), 20)], firing={240: firing})
    of_shards = {name for name in firing if "by shard" in name}
    for condition, shown in (("held", held), ("detached", detached)):
        wanted = firing - of_shards | behind | {shown}
        require(tmp_path, file, [(recorded(condition), 20)], firing={240: wanted})
    wanted = firing - of_shards | behind | of_positions
    require(tmp_path, file, [(recorded("positioned"), 20)], firing={240: wanted})


def test_promtool_accepts_the_rules() -> None:
    found = promtool("check", "rules", RULES)
    assert found.returncode == 0, found.stdout + found.stderr
