"""Bugs of an outbox that is published to several clusters: see `bugs`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from simulation import planted_clusters, planted_ports
from simulation.bug import Bug
from simulation.cluster_statements import ClusterStatements
from simulation.log import ReconfiguredLog
from simulation.verdicts import Verdict
from simulation.world import Design

from airflow_outbox.harvest import catching_up, exactly_once, logs, modes, promoting, settling
from airflow_outbox.harvest import recovery as recovery_term
from airflow_outbox.harvest.catching_up import CatchingUp
from airflow_outbox.harvest.protocol import clusters
from airflow_outbox.harvest.protocol import recovery as recovery_rules
from airflow_outbox.values.fence import Fence

CLUSTERED = Design(clusters=2)


def _clustered(name: str, place: object, attribute: str, value: Any, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, "clustered", CLUSTERED, (place, attribute, value))


def _forsaken(name: str, place: object, attribute: str, value: str, *found_by: Verdict) -> Bug:
    return Bug(name, found_by, "forsaken", CLUSTERED, (place, attribute, getattr(planted_clusters, value)))


_V = Verdict
CLUSTER_BUGS: Collection[Bug] = (
    _clustered(
        "a backup commits before the primary",
        exactly_once,
        "Commitment",
        planted_clusters.BackupsFirst,
        _V.FALSE_ALARM,
    ),
    _clustered(
        "a batch is purged before all clusters have it",
        modes,
        "ExactlyOnceTerm",
        planted_clusters.PurgesBeforeAll,
        _V.PURGED_UNPUBLISHED,
    ),
    _clustered(
        "what can be read on the primary counts as published",
        exactly_once,
        "Commitment",
        planted_clusters.CompletesUnread,
        _V.FALSE_WATERMARK,
    ),
    _clustered(
        "ledgers are read before any cluster's producers are fenced",
        modes,
        "RecoveryTerm",
        planted_clusters.ReadsBeforeItFences,
        _V.CLUSTERS_DIFFER,
        _V.DOUBLED,
    ),
    Bug(
        "a cluster counts whose producers are not fenced",
        (_V.CLUSTERS_DIFFER, _V.DOUBLED),
        "clustered",
        replace(CLUSTERED, transactional_log=planted_clusters.FencesOnlyThePrimary),
    ),
    _clustered(
        "what only the primary has is not completed on the backups",
        recovery_term,
        "incomplete",
        planted_clusters.completes_nowhere,
        _V.LOST,
    ),
    Bug(
        "a batch is completed in another order",
        (_V.CLUSTERS_DIFFER,),
        "clustered",
        replace(CLUSTERED, table=planted_clusters.ReplaysBackwards),
    ),
    _clustered(
        "a batch that is completed gets another identity",
        recovery_term,
        "replay",
        planted_clusters.under_its_own_view,
        _V.FALSE_ALARM,
    ),
    _clustered(
        "what recovery commits is taken for the term's",
        logs,
        "Logs",
        planted_clusters.CountsReplays,
        _V.FALSE_WATERMARK,
        _V.PURGED_UNPUBLISHED,
    ),
    Bug(
        "producers that complete a batch are not recorded before",
        (_V.CLUSTERS_DIFFER, _V.DOUBLED),
        "clustered_reconfigured",
        replace(CLUSTERED, table=planted_clusters.ReplaysUnrecorded, transactional_log=ReconfiguredLog),
    ),
    Bug(
        "what a promoted cluster lacks is not completed there",
        (_V.FALSE_ALARM,),
        "promoted",
        Design(clusters=3),
        (Fence, "is_promoted", False),
    ),
    Bug(
        "a batch is joined by its number",
        (_V.CLUSTERS_DIFFER, _V.DOUBLED, _V.LOST),
        "attached",
        Design(clusters=3),
        (clusters, "_are_same", planted_clusters.joins_by_number),
    ),
    Bug(
        "a cluster counts that lacks what it is owed",
        (_V.FALSE_ALARM,),
        "attached",
        Design(clusters=3),
        (catching_up, "owed_from", planted_clusters.owes_nothing),
    ),
    Bug(
        "what clusters are owed is not kept",
        (_V.FALSE_ALARM,),
        "attached",
        replace(Design(clusters=3), table=planted_clusters.KeepsNothing),
    ),
    Bug(
        "a cluster gets what it is owed in another order",
        (_V.CLUSTERS_DIFFER,),
        "attached",
        replace(Design(clusters=3), table=planted_clusters.OwesBackwards),
    ),
    Bug(
        "only what recovery completes is kept",
        (_V.FALSE_ALARM, _V.CLUSTERS_DIFFER),
        "detached",
        Design(clusters=2, detach_after=1),
        (settling.Settling, "complete", planted_clusters.completes_unkept),
    ),
    Bug(
        "a batch is completed from the wrong ledger",
        (_V.FALSE_ALARM, _V.DOUBLED, _V.CLUSTERS_DIFFER, _V.LOST),
        "clustered",
        CLUSTERED,
        (recovery_term, "incomplete", planted_clusters.from_the_wrong_ledger),
    ),
    Bug(
        "a view outlives its membership",
        (_V.FALSE_ALARM, _V.CLUSTERS_DIFFER, _V.LOST),
        "attached",
        replace(Design(clusters=3), table=planted_ports.Unfenced),
    ),
    Bug(
        "another outbox's ledger is accepted",
        (_V.FOREIGN,),
        "exchanged",
        CLUSTERED,
        (recovery_rules, "_differences_ahead", planted_clusters.finds_no_difference),
    ),
    Bug(
        "a request for other shards outlives a cluster",
        (_V.STUCK,),
        "detached_shards",
        Design(clusters=2, detach_after=1, shards=1),
        (ClusterStatements, "withdraw_layout", planted_clusters.keeps_the_request),
    ),
    _forsaken("an accepted cluster gets once more what it has alone", CatchingUp, "_wanted", "gets_all", _V.DOUBLED),
    _forsaken("an accepted cluster counts too early", CatchingUp, "waits", "waits_for_nothing", _V.DOUBLED),
    _forsaken(
        "an owed cluster is promoted as it is",
        promoting._Whole,
        "_all",
        "believes_it_is_whole",
        _V.LOST,
        _V.FALSE_ALARM,
        _V.CLUSTERS_DIFFER,
    ),
    _forsaken(
        "what a promoted cluster got is taken for accounted",
        CatchingUp,
        "row",
        "takes_all_for_accounted",
        _V.FALSE_COUNTS,
    ),
)
