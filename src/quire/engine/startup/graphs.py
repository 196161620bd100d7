"""Records CUDA graphs of an engine's steps where the configuration asks for them and the model and
its attention allow it."""

from typing import NamedTuple

import torch

from quire.engine.config import ModelConfig
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.startup.assemble import OnProgress
from quire.engine.startup.kv_plan import KVPlan
from quire.models.config import CUDAGraphMode
from quire.models.graphs.buffers import Buffers, DecodeLimits
from quire.models.graphs.cuda import CUDADevice
from quire.models.graphs.decode import ReplayableBackend, record_decode
from quire.models.graphs.graphed_model import GraphedModel, with_recorded
from quire.models.graphs.pieces import PieceBuffers, PieceLimits, record_pieces
from quire.models.graphs.recorded import Recorded
from quire.models.graphs.sizes import GraphKinds
from quire.models.hf import HFModel

EAGER = "eager"
GRAPHS = "cuda_graphs"


class RecordedModel(NamedTuple):
    """The model that computes the steps, and how it launches those of one token a request
    (`decode`) and the others (`prefill`), in words."""

    model: HFModel | GraphedModel | LeadingModel
    decode: str
    prefill: str


def kinds_of(config: ModelConfig, device: torch.device, *, is_replayable: bool) -> GraphKinds:
    """Return which steps are recorded on a device, with attention that `is_replayable` or not.

    Steps are recorded on GPUs, and whole only with a backend that reads all of its inputs from the
    device.
    """
    if device.type != "cuda":
        return GraphKinds()
    mode = _mode(config)
    return GraphKinds(decode=mode.has_full and is_replayable, pieces=mode.has_pieces)


def kinds_to_record(
    config: ModelConfig, model: HFModel | LeadingModel, device: torch.device
) -> GraphKinds:
    """Return which steps of `model` are recorded: none where several ranks compute them."""
    if isinstance(model, LeadingModel):
        return GraphKinds()
    is_replayable = isinstance(model.backend, ReplayableBackend)
    return kinds_of(config, device, is_replayable=is_replayable)


def with_graphs(
    config: ModelConfig,
    model: HFModel | LeadingModel,
    device: torch.device,
    plan: KVPlan,
    on_progress: OnProgress,
) -> RecordedModel:
    """Return `model`, with its steps recorded as far as they are to be and can be."""
    kinds = kinds_to_record(config, model, device)
    decode, pieces = (Recorded(None, why_not=why) for why in _why_not(config))
    if isinstance(model, LeadingModel) or not any(kinds):
        return RecordedModel(model, *launch_words(decode, pieces, device))
    if kinds.decode:
        decode = _record_decode(model, device, plan, on_progress)
    if kinds.pieces:
        pieces = _record_pieces(model, device, plan, on_progress)
    return RecordedModel(
        with_recorded(model, decode, pieces), *launch_words(decode, pieces, device)
    )


def launch_words(decode: Recorded, pieces: Recorded, device: torch.device) -> tuple[str, str]:
    """Return how steps of one token a request, and how the others are launched."""
    prefill = _eager(pieces, device)
    if pieces.steps is not None:
        prefill = (
            f"{GRAPHS} in pieces, {pieces.num_graphs} for {pieces.num_sizes} sizes of up to "
            f"{pieces.largest} tokens"
        )
    if decode.steps is not None:
        return f"{GRAPHS}, of up to {decode.largest} requests", prefill
    return prefill if pieces.steps is not None else _eager(decode, device), prefill


def _record_decode(
    model: HFModel, device: torch.device, plan: KVPlan, on_progress: OnProgress
) -> Recorded:
    limits = plan.limits
    sizes = DecodeLimits(
        limits.max_num_seqs,
        limits.max_model_len,
        -(-limits.max_model_len // plan.capacity.block_size),
        len(plan.capacity.layout.groups),
    )
    assert isinstance(model.backend, ReplayableBackend), "only then decode steps are recorded"
    return record_decode(
        model,
        model.backend,
        Buffers(sizes, device),
        CUDADevice(device),
        lambda done, total: on_progress("graphs", done, total),
    )


def _record_pieces(
    model: HFModel, device: torch.device, plan: KVPlan, on_progress: OnProgress
) -> Recorded:
    limits = PieceLimits(plan.num_tokens, plan.limits.max_num_seqs)
    return record_pieces(
        model,
        PieceBuffers(limits, device),
        CUDADevice(device),
        lambda done, total: on_progress("piecewise_graphs", done, total),
    )


def _mode(config: ModelConfig) -> CUDAGraphMode:
    return CUDAGraphMode.NONE if config.enforce_eager else config.cudagraph_mode


def _why_not(config: ModelConfig) -> tuple[str, str]:
    """Return why steps of one token a request, and the others, are not recorded, if they are
    not."""
    mode, option = _mode(config), f"--cudagraph-mode {config.cudagraph_mode}"
    if config.enforce_eager:
        return ("--enforce-eager",) * 2
    if config.tensor_parallel_size > 1:
        return ("--tensor-parallel-size",) * 2
    return "its attention asks the host" if mode.has_full else option, option


def _eager(recorded: Recorded, device: torch.device) -> str:
    """Return the words for steps that are not recorded."""
    return EAGER if device.type != "cuda" else f"{EAGER} (not {GRAPHS}: {recorded.why_not})"
