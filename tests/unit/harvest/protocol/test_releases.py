"""Parked records are released once everything that was diverted before is in the parked table."""

from __future__ import annotations

from airflow_outbox.harvest.protocol.releases import Releases


def test_a_term_begins_with_a_release() -> None:
    releases = Releases()
    assert releases.take(settled=0)
    assert not releases.take(settled=0)


def test_a_release_waits_until_the_last_diversion_is_settled() -> None:
    releases = Releases()
    assert releases.take(settled=3)
    releases.diverted(5)
    assert not releases.take(settled=9)  # nothing that held others is gone
    releases.wanted()
    assert not releases.take(settled=4)
    assert releases.take(settled=5)


def test_a_release_waits_for_the_last_batch_that_may_free_records() -> None:
    releases = Releases()
    releases.wanted(6)
    releases.wanted(4)
    assert not releases.take(settled=5)
    assert releases.take(settled=6)
    releases.wanted(0)  # more than fit into one release
    assert releases.take(settled=6)
