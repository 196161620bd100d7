"""From a configuration to an engine: load, measure, size, assemble. Each phase is timed."""

from collections.abc import Callable

from quire.cache.config import CacheConfig
from quire.cache.kv_cache import KVCache
from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts
from quire.engine.runner import Runner, RunnerConfig
from quire.models.batch import Model
from quire.models.toy import ToyModel
from quire.scheduler.config import SchedulerConfig
from quire.scheduler.scheduler import Scheduler

OnProgress = Callable[[str, int, int], None]
Clock = Callable[[], float]

TOY_VOCAB_SIZE = 512
TOY_CONTEXT = 2048
TOY_BLOCKS = 1024


def build_engine(
    config: EngineConfig, *, on_progress: OnProgress, clock: Clock
) -> tuple[Engine, EngineFacts]:
    """Raises ValueError or an error of the loader or of sizing, whose text is for people."""
    budget = config.max_num_batched_tokens or config.max_num_seqs
    scheduler_config(config, budget, config.max_model_len or 2)  # says what is wrong before loading
    if config.model == TOY_MODEL:
        return _build_toy(config, clock)
    from quire.engine.build_model import build_model_engine  # torch and transformers are slow

    return build_model_engine(config, on_progress=on_progress, clock=clock)


def assemble(config: EngineConfig, facts: EngineFacts, model: Model, clock: Clock) -> Engine:
    """Cache, scheduler, runner and engine over a model that has its KV store."""
    cache = KVCache(CacheConfig(facts.num_blocks, facts.block_size, config.enable_prefix_caching))
    scheduler = Scheduler(
        scheduler_config(config, facts.max_num_batched_tokens, facts.max_model_len), cache
    )
    runner_config = RunnerConfig(
        max_num_seqs=facts.max_num_seqs,
        max_num_blocks=-(-facts.max_model_len // facts.block_size),
        block_size=facts.block_size,
        device=facts.device,
    )
    return Engine(scheduler, Runner(runner_config, model), clock)


def scheduler_config(
    config: EngineConfig, max_num_batched_tokens: int, max_model_len: int
) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        max_num_queued_reqs=config.max_num_queued_reqs,
    )


def _build_toy(config: EngineConfig, clock: Clock) -> tuple[Engine, EngineFacts]:
    num_blocks = config.num_gpu_blocks_override or TOY_BLOCKS
    facts = EngineFacts(
        model_type=TOY_MODEL,
        dtype="uint64",
        device="cpu",
        vocab_size=TOY_VOCAB_SIZE,
        max_model_len=config.max_model_len or TOY_CONTEXT,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens or max(512, config.max_num_seqs),
        block_size=config.block_size,
        num_blocks=num_blocks,
        eos_token_ids=(),
        receipt=(),
        startup_s={},
    )
    model = ToyModel(TOY_VOCAB_SIZE, num_blocks, config.block_size)
    return assemble(config, facts, model, clock), facts
