"""Builds an engine from its configuration: load, measure, size, assemble. Each phase is timed."""

from collections.abc import Callable

from quire.engine.config import TOY_MODEL, EngineConfig, check_options
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts, EngineFailure
from quire.engine.startup.assemble import Clock, OnProgress
from quire.engine.startup.build_toy import build_toy_engine
from quire.engine.startup.disk import check_disk
from quire.engine.startup.transfer import check_transfer
from quire.engine.tracing import check_tracing


def build_engine(
    config: EngineConfig,
    *,
    on_progress: OnProgress,
    clock: Clock,
    began_s: float | None = None,
    on_rank_lost: Callable[[EngineFailure], None] | None = None,
) -> tuple[Engine, EngineFacts]:
    """Return an engine and the facts that its server needs.

    `began_s` is when the process began, by `clock`; the time since is a phase of the start.
    `on_rank_lost` is that of `Leader`. Raises ValueError, or an error of the loader or of sizing,
    whose text is for people.
    """
    check_options(config)
    check_tracing(config.tracing.otlp_traces_endpoint)
    check_disk(config.memory)
    check_transfer(config.memory)
    if config.model.model == TOY_MODEL:
        return build_toy_engine(config, clock)
    # torch and transformers are slow to import
    from quire.engine.startup.build_model import build_model_engine
    from quire.engine.startup.start import PhaseTimer

    timer = PhaseTimer(clock, last_s=clock() if began_s is None else began_s)
    timer.end("imports")
    return build_model_engine(config, timer, on_progress=on_progress, on_rank_lost=on_rank_lost)
