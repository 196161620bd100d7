"""Loads the shard of a model for one rank."""

from quire.engine.config import ModelConfig
from quire.engine.devices.placement import Placement
from quire.models.loading.checkpoint import ModelSource, Progress
from quire.models.loading.loaded_model import LoadedModel
from quire.models.loading.loader import load_shard
from quire.models.parallel.group import RankGroup

COLLECTIVE_TIMEOUT_S = 1800.0
"""Seconds that a rank waits for the others where it must: a rank that hangs is found sooner, by the
step that does not end."""


def load_part(
    config: ModelConfig, placement: Placement, on_progress: Progress, group: RankGroup
) -> LoadedModel:
    """Return the part that this rank of `group` has of the model in the folder that `config`
    names. Raises RankLost too."""
    return load_shard(
        source_of(config),
        group,
        dtype=placement.dtype,
        on_progress=on_progress,
        kernels=placement.kernels,
    )


def source_of(config: ModelConfig) -> ModelSource:
    """Return the source of the model in the folder that `config` names."""
    return ModelSource(config.model, trust_remote_code=config.trust_remote_code)
