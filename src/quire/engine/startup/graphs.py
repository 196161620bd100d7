"""Records CUDA graphs of an engine's decode steps where the backend allows it."""

from typing import NamedTuple

import torch

from quire.engine.config import ModelConfig
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.startup.assemble import OnProgress
from quire.engine.startup.kv_plan import KVPlan
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.cuda import CUDADevice
from quire.models.graphs.graphed_model import GraphedModel, ReplayableBackend, record_decode
from quire.models.hf import HFModel

EAGER = "eager"


class DecodeModel(NamedTuple):
    """The model that computes the steps, and how it launches those of one token a request."""

    model: HFModel | GraphedModel | LeadingModel
    decode: str


def recorded_backend(
    config: ModelConfig, model: HFModel | LeadingModel, device: torch.device
) -> ReplayableBackend | None:
    """Return the model's attention backend if decode steps are recorded, else None.

    They are recorded on GPUs, unless eager mode is enforced, with a backend that reads all of its
    inputs from the device, and where one rank computes them.
    """
    if device.type != "cuda" or config.enforce_eager or isinstance(model, LeadingModel):
        return None
    return model.backend if isinstance(model.backend, ReplayableBackend) else None


def with_graphs(
    config: ModelConfig,
    model: HFModel | LeadingModel,
    device: torch.device,
    plan: KVPlan,
    on_progress: OnProgress,
) -> DecodeModel:
    """Return `model`, with its decode steps recorded if they are to be and can be."""
    backend, limits = recorded_backend(config, model, device), plan.limits
    if backend is None or isinstance(model, LeadingModel):
        return DecodeModel(model, _why_eager(config, device))
    sizes = DecodeLimits(
        limits.max_num_seqs,
        limits.max_model_len,
        -(-limits.max_model_len // plan.capacity.block_size),
        len(plan.capacity.layout.groups),
    )

    def report_progress(done: int, total: int) -> None:
        on_progress("graphs", done, total)

    recorded = record_decode(
        model, backend, Buffers(sizes, device), CUDADevice(device), report_progress
    )
    if recorded.why_not:
        return DecodeModel(recorded.model, _not_graphs(recorded.why_not))
    return DecodeModel(recorded.model, f"cuda_graphs, of up to {recorded.largest} requests")


def _why_eager(config: ModelConfig, device: torch.device) -> str:
    if device.type != "cuda":
        return EAGER
    if config.enforce_eager:
        return _not_graphs("--enforce-eager")
    if config.tensor_parallel_size > 1:
        return _not_graphs("--tensor-parallel-size")
    return _not_graphs("its attention asks the host")


def _not_graphs(why: str) -> str:
    return f"{EAGER} (not cuda_graphs: {why})"
