"""Loads a model: all of it, or on each rank its part, with the same options."""

from dataclasses import replace

from quire.cache.layout import unify
from quire.engine.config import ModelConfig
from quire.engine.ranks.loaded_ranks import LoadedRanks, OtherRanks
from quire.engine.ranks.messages import Load, Loaded
from quire.engine.startup.assemble import OnProgress
from quire.engine.startup.placement import Placement
from quire.engine.startup.start import Start
from quire.engine.startup.weights_cache import packed_file
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model, load_shard
from quire.models.parallel.group import RankGroup, join_group, serve_store
from quire.models.parallel.ranks import RankLost

COLLECTIVE_TIMEOUT_S = 1800.0
"""A rank waits so long for the others where it must: a rank that hangs is found sooner, by the step
that does not end."""


def load_ranks(start: Start) -> LoadedRanks:
    """Return the model, on all ranks. Raises CheckpointError or UnsupportedModel, and RanksFailed
    where another rank cannot load its part."""
    config, leader, platform = start.local_config, start.leader, start.platform
    device = start.placement.device
    if leader is None:
        local = load(config.model, start.placement, start.on_progress)
        return LoadedRanks(local, platform, platform.graph_device(device, None))
    store = serve_store(COLLECTIVE_TIMEOUT_S)
    leader.tell(Load(config, store.port))
    try:
        group = join_group(0, leader.num_ranks, store, device, COLLECTIVE_TIMEOUT_S)
        local = load_part(config.model, start.placement, start.on_progress, group)
    except RankLost:
        leader.wait_for_loss()
        raise
    loaded = tuple(leader.answers(Loaded))
    layout = local.facts.layout(config.kv_options)
    unify([layout, *(each.layout for each in loaded)])
    graph_device = platform.graph_device(device, group)
    return LoadedRanks(local, platform, graph_device, OtherRanks(leader, group, loaded))


def load(config: ModelConfig, placement: Placement, on_progress: OnProgress) -> LoadedModel:
    """Return the model in the folder that `config` names. Raises CheckpointError or
    UnsupportedModel."""
    return load_model(
        replace(_source(config), packed_file=packed_file(config, placement)),
        dtype=placement.dtype,
        device=placement.device,
        on_progress=on_progress,
        kernels=placement.kernels,
    )


def load_part(
    config: ModelConfig, placement: Placement, on_progress: OnProgress, group: RankGroup
) -> LoadedModel:
    """Return the part of that model that this rank of `group` has. Raises RankLost too."""
    return load_shard(
        _source(config),
        group,
        dtype=placement.dtype,
        on_progress=on_progress,
        kernels=placement.kernels,
    )


def _source(config: ModelConfig) -> ModelSource:
    return ModelSource(config.model, trust_remote_code=config.trust_remote_code)
