"""A leader's connections are cut, delayed, half-opened, and what is on its way is held back until another leads: where
it marks, where it publishes, and where it purges, in the middle of a load.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from faults.histories import errors_of
from faults.proxy import BOTH, Kind, Proxy, Way
from faults.scene import AT_LEAST_ONCE, EXACTLY_ONCE, MARK, PURGE, Scene, Servers
from support.harvesting import SHORT_SESSION

# So that a server that is silent is given up in seconds.
LIMITS = {"statement_timeout": 3, "delivery_timeout": 4, "transaction_timeout": 6}
SLOWER = {"produce": {"transaction_timeout": 20}}
"""A record is given up before its transaction is, however long a busy machine holds the leader up."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a fault strikes: which proxy, which of its connections, and which bytes are the request that counts."""

    name: str
    proxy: Callable[[Servers], Proxy]
    opening: bytes
    kind: Kind
    latency: float


# psycopg prepares the statements that it repeats, and calls them so.
MARK_ROWS = Target("mark", lambda servers: servers.to_postgres, MARK, lambda data: b"_pg3_" in data, 0.5)
PRODUCE = Target("produce", lambda servers: servers.to_produce, b"", lambda data: data[4:6] == b"\0\0", 0.1)
PURGE_ROWS = Target(
    "purge", lambda servers: servers.to_postgres, PURGE, lambda data: b"DELETE FROM" in data or b"_pg3_" in data, 0.5
)
COMMIT = Target("commit", lambda servers: servers.to_produce, b"", lambda data: data[4:6] == b"\0\x1a", 0.1)
"""The request that ends Kafka's transaction: EndTxn, after whose loss nobody knows what became of it."""


SAYS = {
    "mark": "has not answered for 3 s",
    "produce": "was not (published|written)",  # a record of the outbox, or the ledger, whichever was on its way
    "purge": "has not answered for 3 s",
    "commit": "nobody knows yet whether a batch was committed",
}
"""A leader's words about a request that is never answered."""

pytestmark = pytest.mark.parametrize(
    ("delivery", "target"),
    [
        *((EXACTLY_ONCE, target) for target in (MARK_ROWS, PRODUCE, PURGE_ROWS, COMMIT)),
        (AT_LEAST_ONCE, PRODUCE),
        *(pytest.param(AT_LEAST_ONCE, target, marks=pytest.mark.long) for target in (MARK_ROWS, PURGE_ROWS)),
    ],
    ids=lambda value: value.name if isinstance(value, Target) else value,
)


@pytest.mark.parametrize("before", [True, False], ids=["before the request", "before the reply"])
def test_cut(scene: Scene, target: Target, before: bool) -> None:
    leader = scene.leader(proxied=True, limits=LIMITS)
    scene.midway()
    since = len(leader.events)
    scene.hits(target.proxy(scene.servers).cut_at(target.opening, kind=scene.amid(target.kind), before=before))
    if target.proxy(scene.servers) is scene.servers.to_postgres:  # the idempotent producer rides that out by itself
        scene.next_event(leader, "view", since=since)
    scene.midway()
    scene.ends_well()


@pytest.mark.long(target=MARK_ROWS)
def test_delayed(scene: Scene, target: Target) -> None:
    scene.leader(proxied=True, limits=LIMITS)
    scene.midway()
    proxy = target.proxy(scene.servers)
    scene.hits(proxy.delay(target.latency, target.opening, kind=scene.amid(target.kind)))
    scene.midway()
    proxy.heal()
    scene.ends_well()


@pytest.mark.parametrize(
    "ways", [pytest.param(BOTH, id="both ways", marks=pytest.mark.long), pytest.param((Way.REPLIES,), id="replies")]
)
def test_half_open(scene: Scene, target: Target, ways: tuple[Way, ...]) -> None:
    leader = scene.leader(proxied=True, limits={**LIMITS, **SLOWER.get(target.name, {})})
    scene.midway()
    since = len(leader.events)
    proxy = target.proxy(scene.servers)
    scene.hits(proxy.swallow(target.opening, kind=scene.amid(target.kind), ways=ways))
    scene.wait_until(lambda: any(re.search(SAYS[target.name], error) for error in errors_of(leader, since=since)))
    proxy.heal()
    scene.next_event(leader, "view", since=since)
    scene.ends_well()


@pytest.mark.long(target=MARK_ROWS)
def test_what_a_killed_leader_has_sent_arrives_when_another_leads(scene: Scene, target: Target) -> None:
    scene.limits = {**LIMITS, **SHORT_SESSION}
    leader = scene.leader(proxied=True)
    scene.midway()
    proxy = target.proxy(scene.servers)
    scene.hits(proxy.hold(target.opening, kind=scene.amid(target.kind)))
    leader.popen.kill()
    scene.leader()
    scene.midway()
    proxy.heal()
    scene.midway()
    scene.ends_well()
