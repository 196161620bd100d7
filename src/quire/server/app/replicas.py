"""Opens engines of a server that are replicas on Ray Serve."""

import os
from functools import partial
from secrets import token_hex

from quire.engine.config import EngineConfig
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.protocol import OpenEngine
from quire.engines.ray.config import ReplicationConfig
from quire.engines.ray.replicated_engine import ReplicatedEngine
from quire.engines.ray.serve import Cluster, ServeReplicas
from quire.server.config import ServedModelConfig, ServerConfig


def replication_of(config: ServerConfig, model: ServedModelConfig) -> ReplicationConfig:
    """Return the configuration of the replicas of a model."""
    return ReplicationConfig(
        model.engine,
        config.supervision,
        config.replicas or 1,
        config.max_replicas,
        config.replica_routing,
        config.shutdown_timeout_s,
    )


def cluster_of(config: ServerConfig, address: str | None) -> Cluster:
    """Return the cluster at an address, or one of this process' own that has CPUs for all replicas
    of all models."""
    replicas = [replication_of(config, each) for each in config.models]
    num_cpus = [(each.engine.model.num_threads or 1) * each.most_replicas for each in replicas]
    return Cluster(address, max(sum(num_cpus) + 1, os.cpu_count() or 1))


def opener_in(cluster: Cluster, config: ServerConfig) -> OpenEngine:
    """Return what opens engines whose replicas are deployed in a cluster, and end with them."""

    def open_engine(engine: EngineConfig, subscriber: EngineSubscriber) -> ReplicatedEngine:
        model = next(each for each in config.models if each.engine == engine)
        replication, app = replication_of(config, model), f"quire-{token_hex(4)}"
        replicas = ServeReplicas(
            partial(cluster.deploy, app, replication),
            partial(cluster.undeploy, app),
            replication.num_replicas,
        )
        return ReplicatedEngine(replicas, engine, subscriber)

    return open_engine
