"""The configurations of the engines that serve one model on this machine."""

from dataclasses import replace

from quire.engine.config import EngineConfig


def engine_configs(config: EngineConfig) -> tuple[EngineConfig, ...]:
    """Return the configuration of each engine of a model. Lines of the log tell whose they are."""
    size, tracing = config.parallel.data_parallel_size, config.tracing
    if size == 1:
        return (config,)
    return tuple(
        replace(
            config,
            data_parallel_rank=rank,
            tracing=replace(tracing, log_name=f"{tracing.log_name} {rank}"),
        )
        for rank in range(size)
    )
