"""Builds an engine over an encoder, which keeps no keys and values: there are no blocks to size,
and a step is at least one text of the longest kind, since none is cut.
"""

import logging

import msgspec
import torch

from quire.cache.layout import Layout
from quire.cache.sizing import MIB, TooLittleMemory
from quire.engine.config import EngineConfig
from quire.engine.devices.memory import DeviceMemory, peak_bytes
from quire.engine.engine import Engine
from quire.engine.messages import EngineFacts, MemoryFacts, ReceiptLine, ScoreFacts
from quire.engine.startup.assemble import assemble, build_runner
from quire.engine.startup.embedding.embeddings import embedding_facts, encoder_length
from quire.engine.startup.start import DEFAULT_BATCHED_TOKENS, Start, is_overlapped
from quire.models.batch import Batch
from quire.models.config import Quantization
from quire.models.loading.encoder import LoadedEncoder, load_encoder
from quire.models.loading.scoring import is_sigmoid

logger = logging.getLogger(__name__)

NO_LAYOUT = Layout((), ())


def build_encoder_engine(start: Start) -> tuple[Engine, EngineFacts]:
    """Return an engine over an encoder, and its facts. Raises CheckpointError, UnsupportedModel,
    TooLittleMemory, and ValueError for options that an encoder does not have."""
    config, placement = start.config, start.placement
    _check_options(config)
    loaded = load_encoder(
        start.folder,
        dtype=placement.dtype,
        device=placement.device,
        on_progress=start.on_progress,
    )
    start.timer.end("load")
    max_model_len = encoder_length(config, start.folder, loaded.facts.max_model_len)
    num_tokens = _step_tokens(config, max_model_len, placement.device)
    step_bytes = _measure_step(loaded, num_tokens, max_model_len, placement.device)
    start.timer.end("profile")
    facts = _facts(start, loaded, max_model_len, num_tokens)
    facts = _with_receipt(facts, loaded, step_bytes, start.platform.measure(placement.device))
    logger.info("encoder: %s, steps of up to %d tokens", facts.model_type, num_tokens)
    runner = build_runner(start.config, facts, Layout((), ()), loaded.model, None)
    return assemble(start.local_config, facts, NO_LAYOUT, runner, start.timer.clock), facts


def _check_options(config: EngineConfig) -> None:
    memory = config.memory
    if memory.budget.is_explicit or memory.swap_space:
        raise ValueError(
            "this model is an encoder, which keeps no keys and values: the sizes of KV memory and "
            "--swap-space do not go with it"
        )
    if memory.prefix_cache_dir is not None:
        raise ValueError(
            "this model is an encoder, which keeps no keys and values: --prefix-cache-dir does not "
            "go with it"
        )
    if config.model.weights_cache_dir is not None:
        raise ValueError(
            "this model is an encoder, whose weights are not packed: --weights-cache-dir does not "
            "go with it"
        )
    if config.model.quantization is not Quantization.NONE:
        raise ValueError("--quantization does not go with an encoder")


def _step_tokens(config: EngineConfig, max_model_len: int, device: torch.device) -> int:
    """Return the token budget of a step."""
    given, most = config.scheduling.max_num_batched_tokens, config.scheduling.max_num_seqs
    if given is not None and given < max_model_len:
        raise ValueError(
            f"--max-num-batched-tokens is {given}, but an encoder reads a text in one step, and "
            f"one may have {max_model_len} tokens (--max-model-len)"
        )
    default = DEFAULT_BATCHED_TOKENS.get(device.type, DEFAULT_BATCHED_TOKENS["cpu"])
    return given or max(default, max_model_len, most)


def _measure_step(
    loaded: LoadedEncoder, num_tokens: int, max_model_len: int, device: torch.device
) -> int:
    """Return the bytes that the largest step takes. Raises TooLittleMemory if there are not so
    many."""
    starts = (*range(0, num_tokens, max_model_len), num_tokens)
    positions = torch.arange(num_tokens, device=device) % max_model_len
    batch = Batch(
        input_ids=torch.zeros_like(positions),
        positions=positions,
        slots=(),
        block_tables=(),
        query_starts=starts,
        context_lens=tuple(b - a for a, b in zip(starts, starts[1:], strict=False)),
        logits_indices=positions[:0],
        states_indices=torch.arange(num_tokens, device=device),
    )
    try:
        return peak_bytes(device, lambda: loaded.model.forward_with_states(batch))
    except torch.OutOfMemoryError as error:
        raise TooLittleMemory(
            f"a step of {num_tokens} tokens does not fit beside the weights "
            f"({loaded.weight_bytes / MIB:.1f} MiB): pass a smaller --max-num-batched-tokens or "
            "--max-model-len"
        ) from error


def _facts(start: Start, loaded: LoadedEncoder, max_model_len: int, num_tokens: int) -> EngineFacts:
    config, model = start.config, loaded.facts
    device = start.placement.device
    return EngineFacts(
        model_type=model.model_type,
        dtype=model.dtype,
        device=str(device),
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
        max_num_seqs=config.scheduling.max_num_seqs,
        max_num_batched_tokens=num_tokens,
        block_size=config.memory.block_size,
        num_blocks=1,
        num_host_blocks=0,
        eos_token_ids=(),
        receipt=(),
        memory=MemoryFacts(
            kv_dtype="none",
            kv_tokens=0,
            kv_token_bytes=0,
            layer_groups=(),
            padding_share=0.0,
            max_model_len_fits=max_model_len,
            max_concurrency=float(config.scheduling.max_num_seqs),
            why_num_blocks="an encoder keeps no keys and values",
            why_max_num_batched_tokens="no text is cut",
        ),
        startup_s=start.timer.seconds,
        attention="sdpa",
        async_scheduling=is_overlapped(config.scheduling, device),
        embeddings=None
        if loaded.is_scorer
        else embedding_facts(start.folder, config.model.pooling, model, max_model_len),
        is_causal=False,
        scores=ScoreFacts(is_sigmoid(start.folder)) if loaded.is_scorer else None,
    )


def _with_receipt(
    facts: EngineFacts, loaded: LoadedEncoder, step_bytes: int, memory: DeviceMemory
) -> EngineFacts:
    lines = (
        ReceiptLine("device", memory.total),
        ReceiptLine("weights", loaded.weight_bytes),
        ReceiptLine("activation", step_bytes),
        ReceiptLine("unused", max(memory.available - step_bytes, 0)),
    )
    return msgspec.structs.replace(facts, receipt=lines)
