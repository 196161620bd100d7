"""Captures CUDA graphs of an engine's steps, if the configuration asks for them and the model and
its attention allow it."""

from typing import NamedTuple

from quire.engine.config import ModelConfig
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.startup.assemble import OnProgress
from quire.engine.startup.kv_plan import KVPlan
from quire.models.config import CUDAGraphMode
from quire.models.graphs.buffers import DecodeLimits
from quire.models.graphs.capture import GraphDevice
from quire.models.graphs.decode import ReplayableBackend
from quire.models.graphs.graphed_model import GraphedModel
from quire.models.graphs.record import GraphPlan, record_steps
from quire.models.graphs.recorded import CaptureResult
from quire.models.graphs.sizes import GraphKinds
from quire.models.hf import HFModel

EAGER = "eager"
GRAPHS = "cuda_graphs"
ATTENTION = "its attention asks the host"
RECURRENT = "its recurrent layers ask the host"


class RecordedModel(NamedTuple):
    """The model that computes the steps, and how it launches those of one token a request
    (`decode`) and the others (`prefill`), in words."""

    model: HFModel | GraphedModel | LeadingModel
    decode: str
    prefill: str


def kinds_of(config: ModelConfig, *, is_replayable: bool) -> GraphKinds:
    """Return which steps are recorded on a GPU: whole ones only with attention and recurrent layers
    that are replayable, which read all of their inputs from the device."""
    mode = _mode(config)
    return GraphKinds(decode=mode.has_full and is_replayable, pieces=mode.has_pieces)


def kinds_to_record(
    config: ModelConfig, model: HFModel | LeadingModel, device: GraphDevice | None
) -> GraphKinds:
    """Return which steps of `model`, of which nothing is recorded yet, are recorded; none without
    a `device` that captures."""
    if device is None:
        return GraphKinds()
    own = _own(model)
    attends_on_device = own is not None and isinstance(own.backend, ReplayableBackend)
    return kinds_of(config, is_replayable=attends_on_device and not _recurrence_asks(own))


def _own(model: HFModel | LeadingModel) -> HFModel | None:
    """Return the model of this process, of which nothing is recorded; None for one that is."""
    own = model.model if isinstance(model, LeadingModel) else model
    return own if isinstance(own, HFModel) else None


def _recurrence_asks(model: HFModel | None) -> bool:
    """Return whether the kernels of its recurrent layers ask the host, if it has such."""
    kernels = None if model is None else model.kernels
    return kernels is not None and not kernels.is_replayable


def with_graphs(
    config: ModelConfig,
    model: HFModel | LeadingModel,
    device: GraphDevice | None,
    plan: KVPlan,
    on_progress: OnProgress,
) -> RecordedModel:
    """Return `model`, with its steps recorded as far as they are to be and can be, on all ranks.
    Raises RanksFailed."""
    if device is None:
        return RecordedModel(model, EAGER, EAGER)
    kinds = kinds_to_record(config, model, device)
    asks = RECURRENT if _recurrence_asks(_own(model)) else ATTENTION
    decode, pieces = (CaptureResult(None, why_not=why) for why in _why_not(config, asks))
    if not any(kinds):
        return RecordedModel(model, *launch_words(decode, pieces))
    graph_plan = _graph_plan(kinds, plan)
    recorded_model: HFModel | GraphedModel | LeadingModel
    if isinstance(model, LeadingModel):
        recorded_model, steps = model.record(graph_plan, device, on_progress)
    else:
        steps = record_steps(model, graph_plan, device, on_progress)
        recorded_model = steps.model
    words = launch_words(steps.decode or decode, steps.pieces or pieces)
    return RecordedModel(recorded_model, *words)


def launch_words(decode: CaptureResult, pieces: CaptureResult) -> tuple[str, str]:
    """Return how steps of one token a request, and how the others are launched on a GPU."""
    prefill = _eager(pieces)
    if pieces.steps is not None:
        prefill = (
            f"{GRAPHS} in pieces, {pieces.num_graphs} for {pieces.num_sizes} sizes of up to "
            f"{pieces.largest} tokens"
        )
    if decode.steps is not None:
        return f"{GRAPHS}, of up to {decode.largest} requests", prefill
    return prefill if pieces.steps is not None else _eager(decode), prefill


def _graph_plan(kinds: GraphKinds, plan: KVPlan) -> GraphPlan:
    limits, capacity = plan.limits, plan.capacity
    sizes = DecodeLimits(
        limits.max_num_seqs,
        limits.max_model_len,
        -(-limits.max_model_len // capacity.block_size),
        len(capacity.layout.tables),
    )
    return GraphPlan(kinds, sizes, plan.num_tokens)


def _mode(config: ModelConfig) -> CUDAGraphMode:
    return CUDAGraphMode.NONE if config.enforce_eager else config.cudagraph_mode


def _why_not(config: ModelConfig, asks: str) -> tuple[str, str]:
    """Return why steps of one token a request, and the others, are not recorded, if they are not;
    `asks` says what asks the host."""
    mode, option = _mode(config), f"--cudagraph-mode {config.cudagraph_mode}"
    if config.enforce_eager:
        return ("--enforce-eager",) * 2
    return asks if mode.has_full else option, option


def _eager(recorded: CaptureResult) -> str:
    """Return the words for steps that are not recorded."""
    return f"{EAGER} (not {GRAPHS}: {recorded.why_not})"
