"""The configuration of the replicas of a model."""

from dataclasses import dataclass
from enum import StrEnum

from quire.engine.config import EngineConfig, SupervisionConfig


class ReplicaRouting(StrEnum):
    """The ways to choose a replica for a request: where most of its prompt was seen before, unless
    that one has many more requests than another, or the one with fewer requests of two."""

    PREFIX = "prefix"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """The configuration of the replicas of one model.

    num_replicas: how many there are, the fewest where `max_replicas` lets their number follow the
        load.
    upscale_delay_s, downscale_delay_s: the load must ask for more or fewer for so long.
    drain_s: the seconds that the requests of a replica get to end before it goes; those that have
        not go on in another.
    """

    engine: EngineConfig
    supervision: SupervisionConfig
    num_replicas: int = 1
    max_replicas: int | None = None
    routing: ReplicaRouting = ReplicaRouting.PREFIX
    drain_s: float = 30.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0

    @property
    def most_replicas(self) -> int:
        """The most replicas that there may be."""
        return max(self.num_replicas, self.max_replicas or 0)
