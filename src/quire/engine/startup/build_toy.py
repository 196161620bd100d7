"""Builds an engine over the toy model, which takes no memory and no time."""

import psutil

from quire.cache.sizing import KVCapacity
from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.engine import Engine
from quire.engine.messages import EmbeddingFacts, EngineFacts
from quire.engine.startup.assemble import Clock, assemble, build_runner
from quire.engine.startup.kv_plan import Limits, Reasons
from quire.engine.startup.receipt import memory_facts
from quire.engine.startup.swap_space import swap_space
from quire.models.config import KVSize
from quire.models.toy import TOY_HIDDEN_SIZE, ToyModel, toy_layout
from quire.scheduler.request import PoolingKind

TOY_VOCAB_SIZE = 512
TOY_CONTEXT = 2048
TOY_BLOCKS = 1024
TOY_BATCHED_TOKENS = 512
TOY_LAYOUT = toy_layout()


def build_toy_engine(config: EngineConfig, clock: Clock) -> tuple[Engine, EngineFacts]:
    """Return an engine over the toy model, and its facts. Raises ValueError."""
    memory, scheduling = config.memory, config.scheduling
    limits = Limits(
        max_model_len=scheduling.max_model_len or TOY_CONTEXT,
        model_max_len=TOY_CONTEXT,
        max_num_seqs=scheduling.max_num_seqs,
        num_tokens=scheduling.max_num_batched_tokens,
        default_token_budget=TOY_BATCHED_TOKENS,
    )
    size, num_tokens = memory.block_size, limits.max_step_tokens
    num_blocks = memory.budget.blocks(TOY_LAYOUT, block_size=size, max_chunk_tokens=num_tokens)
    capacity = KVCapacity(TOY_LAYOUT, num_blocks or TOY_BLOCKS, size, num_tokens)
    space = swap_space(config, TOY_LAYOUT.host_block_bytes(size), is_host=True)
    space.check(psutil.virtual_memory().available)
    reasons = Reasons("as the toy has them", "as the toy takes them")
    facts = EngineFacts(
        model_type=TOY_MODEL,
        dtype="uint64",
        device="cpu",
        vocab_size=TOY_VOCAB_SIZE,
        max_model_len=limits.max_model_len,
        max_num_seqs=scheduling.max_num_seqs,
        max_num_batched_tokens=num_tokens,
        block_size=size,
        num_blocks=capacity.num_blocks,
        num_host_blocks=space.num_blocks,
        eos_token_ids=(),
        receipt=(),
        memory=memory_facts(capacity, limits, reasons, kv_dtype="uint64"),
        startup_s={},
        async_scheduling=bool(scheduling.async_scheduling),
        embeddings=EmbeddingFacts(
            PoolingKind.LAST, is_normalized=True, size=TOY_HIDDEN_SIZE, max_len=limits.max_model_len
        ),
    )
    model = ToyModel(TOY_VOCAB_SIZE, KVSize(capacity.num_blocks, size, space.num_blocks))
    runner = build_runner(config, facts, TOY_LAYOUT, model, None)
    return assemble(config, facts, TOY_LAYOUT, runner, clock), facts
