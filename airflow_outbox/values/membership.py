"""The membership of an outbox: which clusters it is published to, in which part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

Part = Literal["primary", "backup", "owed"]
ClusterRequest = Literal["detach", "attach", "reset", "promote"]
"""Something that operators ask of a cluster."""
POSSIBLE: Final[Mapping[Part, Sequence[ClusterRequest]]] = {
    "primary": (),
    "backup": ("detach", "promote"),
    "owed": ("attach", "reset", "promote"),
}
"""The requests that a cluster's part allows."""


@dataclass(frozen=True, slots=True)
class MemberCluster:
    """A cluster's part, since when it has it, and why (None: nobody said). All but owed ones count."""

    name: str
    part: Part
    since: datetime
    reason: str | None


@dataclass(frozen=True, slots=True)
class Membership:
    """`number` counts an outbox's memberships, and `promotions` those of them that had another primary.

    `attach` is the owed cluster that somebody asks for (None: none).
    """

    number: int
    promotions: int
    clusters: Sequence[MemberCluster]
    attach: str | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        """Each cluster's part, by name."""
        return {cluster.name: cluster.part for cluster in self.clusters}

    @property
    def counting(self) -> Sequence[str]:
        """The clusters that have all that is published, the primary first."""
        return [cluster.name for cluster in self.clusters if cluster.part != "owed"]

    @property
    def primary(self) -> str:
        """The cluster that commits first, and elects."""
        return next(cluster.name for cluster in self.clusters if cluster.part == "primary")
