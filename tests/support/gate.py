"""The gate: the tests that `./dev test` plays, and which failures it runs once more.

The gate is what has to pass before a change is taken. It shows that the code is right, and not how fast it is, so a
busy machine can't fail it. `./dev test --all` adds everything else in its short form; a path as an argument plays all
of that path.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import PurePosixPath
from typing import Any

import pytest
from support.harvesting import PatienceExhaustedError

from airflow_outbox.demo.embedded.airflow_api import AirflowTimeoutError
from airflow_outbox.demo.embedded.jars import JarsMissingError
from airflow_outbox.demo.embedded.process import ServerStartError

SECOND_CHANCE = (AirflowTimeoutError, JarsMissingError, PatienceExhaustedError, ServerStartError)
"""What a machine can do to a test, whatever the code is: a server does not start, a download fails, nothing comes.

A test that fails by one of them is run once more, at most two in a run, and the last lines name it. No assertion is
among them, so no judgement of what was lost, doubled, reordered or seen is ever asked for again; nor is a crash.
"""
BEYOND = {
    "tests/timings/": "promises about time, which a busy machine breaks",
    "tests/faults/": "a load, a fault and a judge each; IN_GATE has one or two for each fence",
    "tests/hostile/test_brokers_away.py": "minutes of waiting; the judge of topics is shown by test_topics.py",
    "tests/hostile/test_full_disks.py": "the machine has to let it mount a volume",
    "tests/hostile/test_quotas.py": "a machine that holds heartbeats up for seconds does what the quota must not do",
    "tests/hostile/test_refused_by_the_broker.py::"
    "test_records_that_the_broker_finds_too_large_cost_others_no_more_than_a_few_terms[atomic]": "as [single]",
    "tests/hostile/test_refused_by_the_broker.py::"
    "test_records_without_a_key_for_compacted_topics_are_found_together[atomic]": "as [single]",
    "tests/integration/airflow/test_faults.py": "a second cluster; tests/faults/test_verdict.py has the faults",
    "tests/integration/airflow/test_lineage.py": "it says to others what test_standalone.py does",
    "tests/integration/airflow/test_positions.py": "a second cluster; tests/unit/sensors/ has the sensor",
    "tests/integration/airflow/test_server.py": "of the tests' own Airflow, which all others start",
    "tests/integration/debezium/test_real_debezium.py": "a second product and its servers",
    "tests/integration/ports/test_spreading.py": "it waits for many rebalances; the simulation moves shards, too",
    "tests/integration/spark/": "jobs of minutes; IN_GATE has a batch and a stream that commit",
    "tests/integration/test_alerts.py": "it needs Prometheus; tests/unit/test_monitoring.py reads the rules",
    "tests/integration/test_airflow_commands.py::test_clusters_are_detached_and_promoted_by_their_connections": (
        "a second start of Airflow"
    ),
    "tests/integration/test_benchmarks.py": "of the benchmarks, not of the product",
    "tests/integration/test_local_servers.py": "test_docs.py follows the page that uses them",
    "tests/integration/test_older_release.py": "it needs the history of the repository",
    "tests/integration/test_other_languages.py": "it needs other languages",
    "tests/integration/test_poller.py": "how somebody comes to the project, whose steps other tests take",
    "tests/integration/test_second_day.py": "pages for the second day; IN_GATE has the upgrade",
    "tests/integration/test_shards.py::test_a_handover_of_all_shards_gives_each_to_another_member": "see the next one",
    "tests/integration/test_shards.py::test_a_handover_of_one_shard_moves_no_other": "the simulation moves shards, too",
    "tests/integration/test_shards.py::test_another_number_of_shards_while_it_harvests": (
        "tests/faults/test_resharding.py has that with a kill at each change"
    ),
    "tests/integration/ui/browser/": "a browser; tests/integration/ui/ asks the same pages without one",
    "tests/secure/test_acls.py::test_the_list_is_enough_and_each_entry_is_needed": (
        "a harvester for each entry; that the list is enough is shown for four shards and for two clusters"
    ),
    "tests/secure/test_acls.py::test_the_list_is_enough_for_positions_and_each_entry_is_needed": "as the one before",
    "tests/secure/test_refusals.py": "large records; tests/hostile/test_refused_by_the_broker.py has the kinds",
    "tests/secure/test_tokens.py::test_tokens_that_expire": "it waits until tokens expire",
}
"""What the gate leaves out, a test, a file or a folder, and why."""
IN_GATE = (
    "tests/faults/test_atomic.py::test_a_source_transaction_is_in_one_kafka_transaction[True]",
    "tests/faults/test_atomic.py::test_also_when_leaders_are_killed",
    "tests/faults/test_checker.py",
    "tests/faults/test_cluster_kills.py::test_kill_9_between_any_two_steps[two]",
    "tests/faults/test_connections.py::test_cut[before the reply-exactly_once-commit]",
    "tests/faults/test_connections.py::test_cut[before the reply-exactly_once-produce]",
    "tests/faults/test_connections.py::test_cut[before the reply-exactly_once-purge]",
    "tests/faults/test_copies.py::test_a_template_never_disturbs_the_original",
    "tests/faults/test_cut_off.py::test_a_leader_that_was_frozen_purges_nothing_after_a_promotion[first]",
    "tests/faults/test_frame_proxy.py",
    "tests/faults/test_histories.py::test_a_base_backup_is_restored[at once]",
    "tests/faults/test_histories.py::test_an_asynchronous_replica_is_promoted",
    "tests/faults/test_histories.py::test_an_exchange_while_nobody_harvests[truncated]",
    "tests/faults/test_histories.py::test_the_ledger_is_another_outboxs",
    "tests/faults/test_kills.py::test_kill_9_at_random_moments[exactly_once]",
    "tests/faults/test_late_requests.py::test_a_producers_beginning[late]",
    "tests/faults/test_late_requests.py::test_a_request_amid_the_load[add-late]",
    "tests/faults/test_late_requests.py::test_a_request_amid_the_load[end-late]",
    "tests/faults/test_late_requests.py::test_a_request_amid_the_load[produce-late]",
    "tests/faults/test_late_requests.py::test_without_a_new_epoch_a_late_request_doubles_records",
    "tests/faults/test_lost_commits.py::test_what_a_crash_undoes_is_not_published_and_what_comes_instead_is",
    "tests/faults/test_markers.py::test_published_is_said_when_it_can_be_read[idle]",
    "tests/faults/test_moving.py::test_a_group_that_is_stopped_moves_by_a_command",
    "tests/faults/test_owed_clusters.py::test_a_cluster_that_is_another_one_is_refused_with_what_to_do",
    "tests/faults/test_poison.py::test_poison_of_each_kind_under_kill_9",
    "tests/faults/test_proxy.py",
    "tests/faults/test_renewal.py::test_a_leader_frozen_while_it_commits",
    "tests/faults/test_resharding.py::test_up_down_and_up_again_with_a_stop_or_a_kill_at_each_change",
    "tests/faults/test_servers_and_processes.py::test_kafka_is_killed_and_restarted[exactly_once]",
    "tests/faults/test_servers_and_processes.py::test_postgres_is_restarted_at_once[exactly_once]",
    "tests/faults/test_servers_and_processes.py::test_the_leader_is_killed[at_least_once]",
    "tests/faults/test_servers_and_processes.py::test_the_leader_is_stopped_and_goes_on_when_another_leads[exactly_once]",
    "tests/faults/test_servers_and_processes.py::test_the_leaders_backend_is_terminated[exactly_once-purge]",
    "tests/faults/test_several_clusters.py::test_a_record_that_a_backup_would_refuse_goes_nowhere_and_names_it",
    "tests/faults/test_slow_look_ups.py::"
    "test_a_topic_about_which_kafka_does_not_tell_holds_up_its_own_records_alone[single]",
    "tests/faults/test_standbys.py::test_what_a_fail_over_loses_is_not_published",
    "tests/faults/test_zombies.py::test_a_leader_that_was_stopped_has_no_effect[commit-exactly_once]",
    "tests/faults/test_zombies.py::test_a_leader_that_was_stopped_has_no_effect[witness-exactly_once]",
    "tests/faults/test_zombies.py::test_a_leader_that_was_stopped_has_no_effect[write the ledger-exactly_once]",
    "tests/faults/test_zombies.py::test_a_leader_that_was_stopped_with_a_purge_running_has_no_effect",
    "tests/faults/test_zombies.py::test_a_member_that_was_stopped_while_it_took_over_has_no_effect[begin-exactly_once]",
    "tests/integration/spark/test_batch.py",
    "tests/integration/spark/test_stream.py::test_each_batch_is_committed_once",
    "tests/integration/test_second_day.py::"
    "test_an_outbox_of_an_older_release_is_upgraded_with_a_backlog_and_parked_records",
)
"""What the gate plays all the same, of folders that it leaves out."""
BOUND_TO_TIME = ("timed", "alone")
"""The markers of tests that the gate leaves out wherever they are."""
NEVER_AGAIN = "tests/simulation/"
"""Histories of one seed are always the same."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="everything in its short form, not only the gate")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.option.gate = config.workerinput["gate"]
        config.option.first_of_commit = config.workerinput["first_of_commit"]
        return
    config.option.gate = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption("--all")
    config.option.first_of_commit = _first_of_commit()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of xdist's, which is given paths in any case."""
    option = node.config.option
    node.workerinput |= {"gate": option.gate, "first_of_commit": option.first_of_commit}


def pytest_report_header(config: pytest.Config) -> str:
    played = "the gate" if config.option.gate else "all that was asked for"
    return f"tests: {played}; simulated histories of this commit alone: --first {config.option.first_of_commit}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.gate:
        unknown = {*BEYOND, *IN_GATE}.difference(*(places_of(item.nodeid) for item in items))
        if unknown:
            raise pytest.UsageError(f"{__name__} names what is not there: {', '.join(sorted(unknown))}")
        beyond = {item for item in items if is_beyond(item.nodeid) or any(map(item.get_closest_marker, BOUND_TO_TIME))}
        config.hook.pytest_deselected(items=[*beyond])
        items[:] = [item for item in items if item not in beyond]
    for item in items:
        if not item.nodeid.startswith(NEVER_AGAIN):
            item.add_marker(pytest.mark.flaky(reruns=1, condition=_may_be_run_again))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    again = {report.nodeid for report in terminalreporter.stats.get("rerun", ())}
    for report in terminalreporter.stats.get("passed", ()):
        if report.nodeid in again and report.when == "call":
            terminalreporter.write_line(f"passed when run again: {report.nodeid}")


def is_beyond(nodeid: str) -> bool:
    """Whether the gate leaves a test out."""
    places = places_of(nodeid)
    return not places.isdisjoint(BEYOND) and places.isdisjoint(IN_GATE)


def places_of(nodeid: str) -> set[str]:
    """What a test belongs to: itself, its function, its file, its folders."""
    file, _, name = nodeid.partition("::")
    return {
        nodeid,
        f"{file}::{name.partition('[')[0]}",
        file,
        *(f"{folder}/" for folder in PurePosixPath(file).parents),
    }


def _may_be_run_again(error: BaseException | None) -> bool:
    return isinstance(error, SECOND_CHANCE)


def _first_of_commit() -> int:
    """The first simulated history of a commit, so that each commit plays some of its own; 0 without git."""
    try:
        answer = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(hashlib.sha256(answer).hexdigest()[:7], 16)
