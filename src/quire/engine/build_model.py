"""An engine over a checkpoint: load it, run its largest step once, and turn what is left into
blocks.
"""

import logging
import resource
from dataclasses import dataclass, field

import torch

from quire.cache.sizing import check_model_length_fits, num_blocks_in
from quire.engine.build import Clock, OnProgress, assemble
from quire.engine.config import EngineConfig
from quire.engine.engine import Engine
from quire.engine.memory import DeviceMemory, kv_budget, measure
from quire.engine.messages import EngineFacts, ReceiptLine
from quire.models.batch import Batch
from quire.models.checkpoint import ModelSource
from quire.models.config import KVOptions
from quire.models.loader import LoadedModel, load_model

logger = logging.getLogger(__name__)

ONE_GROUP = KVOptions(hybrid=False)

DEFAULT_BATCHED_TOKENS = {"cpu": 512, "cuda": 2048}
"""A step's token budget where none is given: where each device's matrix product is about best."""


@dataclass(slots=True)
class Phases:
    """Seconds by phase of the start-up."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)
    last_s: float = 0.0

    def end(self, phase: str) -> None:
        now = self.clock()
        self.seconds[phase] = now - self.last_s
        self.last_s = now


def build_model_engine(
    config: EngineConfig, *, on_progress: OnProgress, clock: Clock
) -> tuple[Engine, EngineFacts]:
    """Raises the loader's and sizing's errors, and ValueError for what the model cannot have."""
    phases = Phases(clock, last_s=clock())
    device = choose_device(config.device)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    source = ModelSource(config.model, config.revision, config.trust_remote_code)
    loaded = load_model(source, dtype=config.dtype, device=device, on_progress=on_progress)
    phases.end("load")
    limits = _limits(config, loaded)
    on_progress("profile", 0, 1)
    activation_bytes = _profile(loaded, limits)
    on_progress("profile", 1, 1)
    phases.end("profile")
    memory = measure(device)
    num_blocks = _num_blocks(config, loaded, limits, memory)
    model = loaded.attach(num_blocks, config.block_size, ONE_GROUP)
    phases.end("kv_cache")
    kv_bytes = num_blocks * loaded.facts.layout(ONE_GROUP).block_bytes(config.block_size)
    facts = EngineFacts(
        model_type=loaded.facts.model_type,
        dtype=loaded.facts.dtype,
        device=str(device),
        vocab_size=loaded.facts.vocab_size,
        max_model_len=limits.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        block_size=config.block_size,
        num_blocks=num_blocks,
        eos_token_ids=loaded.facts.eos_token_ids,
        receipt=(
            ReceiptLine("device", memory.total),
            ReceiptLine("weights", loaded.weight_bytes),
            ReceiptLine("activation", activation_bytes),
            ReceiptLine("kv", kv_bytes),
            ReceiptLine("unused", max(memory.available - kv_bytes, 0)),
        ),
        startup_s=phases.seconds,
    )
    logger.info("%s", receipt_text(facts))
    return assemble(config, facts, model, clock), facts


def choose_device(asked: str) -> torch.device:
    """`auto` is the first CUDA device if there is one, else the CPU."""
    if asked != "auto":
        return torch.device(asked)
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def receipt_text(facts: EngineFacts) -> str:
    """The memory receipt as people read it."""
    lines = [f"  {line.kind:12} {line.num_bytes / 2**20:12,.1f} MiB" for line in facts.receipt]
    num_tokens = (facts.num_blocks - 1) * facts.block_size
    concurrency = num_tokens / facts.max_model_len
    return "\n".join(
        [
            f"memory receipt of {facts.device} ({facts.model_type}, {facts.dtype})",
            *lines,
            f"  KV: {facts.num_blocks} blocks of {facts.block_size} tokens, {num_tokens:,} tokens",
            f"  concurrency at {facts.max_model_len} tokens a request: {concurrency:.1f}",
        ]
    )


@dataclass(frozen=True, slots=True)
class _Limits:
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int


def _limits(config: EngineConfig, loaded: LoadedModel) -> _Limits:
    """What is asked, held against the model; what is not asked, from the model and the device."""
    made_for = loaded.facts.max_model_len
    max_model_len = config.max_model_len or made_for
    if max_model_len > made_for:
        raise ValueError(
            f"--max-model-len is {max_model_len}, but this model is made for at most {made_for}"
        )
    budget = config.max_num_batched_tokens
    if budget is None:
        default = DEFAULT_BATCHED_TOKENS.get(loaded.device.type, DEFAULT_BATCHED_TOKENS["cpu"])
        budget = max(default, config.max_num_seqs)
    return _Limits(max_model_len, budget, config.max_num_seqs)


def _profile(loaded: LoadedModel, limits: _Limits) -> int:
    """Run one step of the whole budget, with logits of every token as scored prompts ask for, on
    the null block alone; the bytes that its peak took.
    """
    num_tokens = min(limits.max_num_batched_tokens, limits.max_model_len)
    device = loaded.device
    places = torch.arange(num_tokens, device=device)
    batch = Batch(
        input_ids=torch.zeros_like(places),
        positions=places,
        slots=(torch.zeros_like(places),),
        block_tables=(torch.zeros((1, num_tokens), dtype=torch.int32, device=device),),
        query_starts=(0, num_tokens),
        context_lens=(num_tokens,),
        logit_rows=places,
    )
    before = _peak_bytes(device)
    loaded.attach(num_blocks=1, block_size=1, options=ONE_GROUP).forward(batch)
    return _peak_bytes(device) - before


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _num_blocks(
    config: EngineConfig, loaded: LoadedModel, limits: _Limits, memory: DeviceMemory
) -> int:
    """By override, by bytes, or by share of the device. Of a machine's own memory no more than can
    be of use: for requests that run and, if prefixes are kept, as much again for idle blocks.
    """
    block_bytes = loaded.facts.layout(ONE_GROUP).block_bytes(config.block_size)
    if config.num_gpu_blocks_override is not None:
        num_blocks = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is not None:
        num_blocks = num_blocks_in(config.kv_cache_memory_bytes, block_bytes)
    else:
        budget = kv_budget(memory, loaded.device, config.gpu_memory_utilization)
        num_blocks = num_blocks_in(budget, block_bytes)
        if loaded.device.type == "cpu":
            per_request = -(-limits.max_model_len // config.block_size)
            shares = 2 if config.enable_prefix_caching else 1
            num_blocks = min(num_blocks, shares * limits.max_num_seqs * per_request + 1)
    check_model_length_fits(
        num_blocks,
        block_size=config.block_size,
        block_bytes=block_bytes,
        max_model_len=limits.max_model_len,
    )
    return num_blocks
