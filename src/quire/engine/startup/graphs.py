"""Records CUDA graphs of an engine's decode steps where the backend allows it."""

import torch

from quire.engine.config import ModelConfig
from quire.engine.startup.assemble import OnProgress
from quire.engine.startup.kv_plan import KVPlan
from quire.models.graphs import (
    Buffers,
    CUDAGraphs,
    DecodeLimits,
    GraphedModel,
    ReplayableBackend,
    record_bytes,
    record_decode,
)
from quire.models.hf import HFModel


def recorded_backend(
    config: ModelConfig, model: HFModel, device: torch.device
) -> ReplayableBackend | None:
    """Return the model's attention backend if decode steps are recorded, else None.

    They are recorded on GPUs, unless eager mode is enforced, with a backend that reads all of its
    inputs from the device.
    """
    if device.type != "cuda" or config.enforce_eager:
        return None
    return model.backend if isinstance(model.backend, ReplayableBackend) else None


def graph_bytes(
    config: ModelConfig,
    model: HFModel,
    device: torch.device,
    *,
    max_num_seqs: int,
    token_bytes: int,
) -> int:
    """Return the bytes to keep free for recorded graphs; a token of a step takes `token_bytes`."""
    if recorded_backend(config, model, device) is None:
        return 0
    return record_bytes(max_num_seqs, token_bytes)


def with_graphs(
    config: ModelConfig,
    model: HFModel,
    device: torch.device,
    plan: KVPlan,
    on_progress: OnProgress,
) -> HFModel | GraphedModel:
    """Return `model`, with its decode steps recorded if they are to be and can be."""
    backend, limits = recorded_backend(config, model, device), plan.limits
    if backend is None:
        return model
    sizes = DecodeLimits(
        limits.max_num_seqs,
        limits.max_model_len,
        -(-limits.max_model_len // plan.capacity.block_size),
        len(plan.capacity.layout.groups),
    )

    def report_progress(done: int, total: int) -> None:
        on_progress("graphs", done, total)

    return record_decode(
        model, backend, Buffers(sizes, device), CUDAGraphs(device), report_progress
    )
