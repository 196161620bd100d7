"""The peer: transformers over the same weights in this process, made warm before it is timed, in
several settings. Each is named after what it ran with, since a slow one says little.

Of vLLM and SGLang the wheels are hundreds of megabytes, too large to be carried to a machine
without a network: they are not run.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.generation.continuous_batching.utils import WorkloadHints

from bench.gpu.speed.decoding import Load

PAGE_TOKENS = 256
"""The tokens of one of its blocks, as it has them by default."""
RESULT_S = 60.0
"""A result that takes longer never comes."""

Prompts: TypeAlias = Sequence[Sequence[int]]
Generate: TypeAlias = Callable[[Prompts], int]
"""Generates for all prompts at once, and returns the number of tokens."""


def load_peer(folder: Path, device: torch.device) -> PreTrainedModel:
    """Load transformers' model. Continuous batching takes flash attention instead of torch's, where
    that is installed."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    torch.nn.Module.to(model, device)
    return model


def continuous_settings(load: Load, *, is_rehearsal: bool) -> dict[str, ContinuousBatchingConfig]:
    """Return settings of continuous batching by name: what it chooses itself, and CUDA graphs over
    as many blocks and tokens as the load needs. Prompts have nothing in common that it could share.
    """
    per_request = 1 + -(-(load.num_prompt + load.num_output) // PAGE_TOKENS)
    sized = partial(
        ContinuousBatchingConfig,
        allow_block_sharing=False,
        num_blocks=per_request * max(load.batches) + 2,
        max_batch_tokens=64 if is_rehearsal else 4096,
    )
    if is_rehearsal:  # by itself it takes half of the host's memory
        return {"sized": sized()}
    own = ContinuousBatchingConfig(allow_block_sharing=False, max_memory_percent=0.5)
    return {"its own choice": own, "CUDA graphs": sized(use_cuda_graph=True)}


@contextmanager
def continuous(
    model: PreTrainedModel, setting: ContinuousBatchingConfig, load: Load
) -> Iterator[tuple[str, Generate]]:
    """Run continuous batching in the background, with CUDA graphs captured. Yield its name, which
    tells what was chosen, and what generates by it."""
    manager = model.init_continuous_batching(  # type: ignore[operator]
        _greedy(load),
        setting,
        WorkloadHints(load.num_prompt, load.num_output, max(load.batches)),
    )
    manager.warmup()
    manager.start()
    chosen = manager.continuous_batching_config
    name = (
        f"attention {model.config._attn_implementation}, "
        f"CUDA graphs {getattr(chosen, 'use_cuda_graph', None)}, "
        f"asynchronous {getattr(chosen, 'use_async_batching', None)}"
    )

    def generate(prompts: Prompts) -> int:
        manager.add_requests([list(prompt) for prompt in prompts], max_new_tokens=load.num_output)
        num_tokens = 0
        for _ in prompts:
            result = manager.get_result(timeout=RESULT_S)
            if result is None:
                raise RuntimeError("continuous batching of transformers ended")
            num_tokens += len(result.generated_tokens)
        return num_tokens

    try:
        yield name, generate
    finally:
        manager.stop(block=True, timeout=RESULT_S)


def one_batch(model: PreTrainedModel, load: Load, *, is_compiled: bool) -> Generate:
    """Return what generates for all prompts as one batch that nobody joins or leaves: the least
    work where prompts and outputs are all of one length. Compiled, its cache is static."""
    settings = _greedy(load)
    settings.eos_token_id = model.config.vocab_size  # no token ends it
    if is_compiled:
        settings.cache_implementation = "static"

    def generate(prompts: Prompts) -> int:
        input_ids = torch.tensor(prompts, device=model.device)
        outputs = model.generate(  # type: ignore[operator]
            input_ids, attention_mask=torch.ones_like(input_ids), generation_config=settings
        )
        return int(outputs.numel() - input_ids.numel())

    return generate


def tokens_s(generate: Generate, prompts: Prompts, load: Load) -> float:
    """Return tokens a second, from the first prompt submitted to the last token. Raises
    RuntimeError if some are missing."""
    began_s = time.perf_counter()
    num_tokens = generate(prompts)
    took_s = time.perf_counter() - began_s
    if num_tokens != len(prompts) * load.num_output:
        raise RuntimeError(f"transformers gave {num_tokens} tokens")
    return num_tokens / took_s


def _greedy(load: Load) -> GenerationConfig:
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=load.num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
