"""Loads a model: all of it, or on each rank its part, with the same options."""

from dataclasses import replace

from quire.cache.layout import unify
from quire.engine.config import ModelConfig
from quire.engine.devices.placement import Placement
from quire.engine.ranks.loaded_ranks import LoadedRanks, OtherRanks
from quire.engine.ranks.loading import COLLECTIVE_TIMEOUT_S, load_part, source_of
from quire.engine.ranks.messages import LoadModel, RankLoaded
from quire.engine.startup.start import Start
from quire.engine.startup.weights_cache import packed_file
from quire.models.loading.checkpoint import Progress
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_model
from quire.models.parallel.group import join_group, serve_store
from quire.models.parallel.ranks import RankLost


def load_ranks(start: Start) -> LoadedRanks:
    """Return the model, on all ranks. Raises CheckpointError or UnsupportedModel, and RanksFailed
    where another rank cannot load its part."""
    config, leader, platform = start.local_config, start.leader, start.platform
    device = start.placement.device
    if leader is None:
        local = load(config.model, start.placement, start.on_progress)
        return LoadedRanks(local, platform, platform.graph_device(device, None))
    store = serve_store(COLLECTIVE_TIMEOUT_S)
    leader.tell(LoadModel(config, store.port))
    try:
        group = join_group(0, leader.num_ranks, store, device, COLLECTIVE_TIMEOUT_S)
        local = load_part(config.model, start.placement, start.on_progress, group)
    except RankLost:
        leader.wait_for_loss()
        raise
    loaded = tuple(leader.answers(RankLoaded))
    layout = local.facts.layout(config.kv_options)
    unify([layout, *(each.layout for each in loaded)])
    graph_device = platform.graph_device(device, group)
    return LoadedRanks(local, platform, graph_device, OtherRanks(leader, group, loaded))


def load(config: ModelConfig, placement: Placement, on_progress: Progress) -> LoadedModel:
    """Return the model in the folder that `config` names. Raises CheckpointError or
    UnsupportedModel."""
    return load_model(
        replace(source_of(config), packed_file=packed_file(config, placement)),
        dtype=placement.dtype,
        device=placement.device,
        on_progress=on_progress,
        kernels=placement.kernels,
    )
