"""A leader's way with a backup that it can't reach."""

from __future__ import annotations

from airflow_outbox.harvest.protocol.absences import Absences, Absent


def test_a_leader_resigns_once_before_it_goes_on_without_a_backup() -> None:
    absences = Absences(10)
    assert [absences.failed("b", now) for now in (0, 9, 10)] == [Absent.TRY_AGAIN, Absent.TRY_AGAIN, Absent.RESIGN]
    assert [absences.failed("b", now) for now in (15, 20)] == [Absent.TRY_AGAIN, Absent.DETACH]


def test_a_cluster_that_was_reached_meanwhile_is_away_from_its_next_failure_on() -> None:
    absences = Absences(10)
    assert [absences.failed("b", now) for now in (0, 10)] == [Absent.TRY_AGAIN, Absent.RESIGN]
    absences.reached_all()
    assert [absences.failed("b", now) for now in (30, 39)] == [Absent.TRY_AGAIN, Absent.TRY_AGAIN]
    assert absences.failed("b", 40) is Absent.RESIGN


def test_an_absence_long_ago_is_another_one() -> None:
    absences = Absences(10)
    assert [absences.failed("b", now) for now in (0, 10)] == [Absent.TRY_AGAIN, Absent.RESIGN]
    assert [absences.failed("b", now) for now in (131, 141)] == [Absent.TRY_AGAIN, Absent.RESIGN]


def test_each_cluster_is_away_by_itself_and_none_is_detached_where_all_are_required() -> None:
    absences = Absences(10)
    assert [absences.failed(cluster, now) for cluster, now in (("b", 0), ("c", 9), ("c", 12))] == [Absent.TRY_AGAIN] * 3
    required = Absences(None)
    assert [required.failed("b", now) for now in (0, 1000)] == [Absent.TRY_AGAIN] * 2
