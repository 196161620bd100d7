"""The words that say how steps are launched, and which steps are recorded."""

import pytest
from torch import Tensor

from quire.cache.sizing import KVCapacity
from quire.engine.config import ModelConfig
from quire.engine.startup.graphs import kinds_of, launch_words, with_graphs
from quire.engine.startup.kv_plan import KVPlan, Limits, Reasons
from quire.models.batch import Batch
from quire.models.config import CUDAGraphMode, KVOptions
from quire.models.graphs.recorded import CaptureResult
from quire.models.graphs.sizes import GraphKinds
from tests.models.driver import ignore_progress, load
from tests.models.graphs.device import StandInDevice
from tests.models.reference import References

LIMITS = Limits(
    max_model_len=64, model_max_len=64, max_num_seqs=4, num_tokens=None, default_token_budget=32
)
GPU = StandInDevice()
DEFAULT = CUDAGraphMode.FULL_DECODE_ONLY


def not_graphs(why: str) -> str:
    return f"eager (not cuda_graphs: {why})"


ASKS = not_graphs("its attention asks the host")
OF_MODE = not_graphs(f"--cudagraph-mode {DEFAULT}")


@pytest.mark.parametrize(
    ("device", "config", "decode", "prefill"),
    [
        (None, ModelConfig("llama"), "eager", "eager"),
        (None, ModelConfig("llama", cudagraph_mode=CUDAGraphMode.PIECEWISE), "eager", "eager"),
        (None, ModelConfig("llama", enforce_eager=True), "eager", "eager"),
        (
            GPU,
            ModelConfig("llama", cudagraph_mode=CUDAGraphMode.PIECEWISE, enforce_eager=True),
            *[not_graphs("--enforce-eager")] * 2,
        ),
        (
            GPU,
            ModelConfig("llama", cudagraph_mode=CUDAGraphMode.NONE),
            *[not_graphs("--cudagraph-mode none")] * 2,
        ),
        (GPU, ModelConfig("llama"), ASKS, OF_MODE),
    ],
)
def test_steps_that_are_not_captured_say_why(
    device: StandInDevice | None,
    config: ModelConfig,
    decode: str,
    prefill: str,
    references: References,
) -> None:
    loaded = load(references.checkpoint("llama"))
    capacity = KVCapacity(loaded.facts.layout(KVOptions()), 8, 16, 32)
    plan = KVPlan(capacity, LIMITS, 32, 0, Reasons("", ""))
    model = loaded.attach(capacity.num_blocks, capacity.block_size)
    found = with_graphs(config, model, device, plan, ignore_progress)
    assert found == (model, decode, prefill)


def test_recurrent_layers_that_ask_the_host_are_not_captured(references: References) -> None:
    """Kernels of a CPU read the pieces of a step; between captured pieces they may."""
    loaded = load(references.checkpoint("lfm2"))
    capacity = KVCapacity(loaded.facts.layout(KVOptions()), 8, 16, 32)
    plan = KVPlan(capacity, LIMITS, 32, 0, Reasons("", ""))
    model = loaded.attach(capacity.num_blocks, capacity.block_size, num_states=2)
    found = with_graphs(ModelConfig("lfm2"), model, GPU, plan, ignore_progress)
    assert found == (model, not_graphs("its recurrent layers ask the host"), OF_MODE)


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        (CUDAGraphMode.NONE, GraphKinds()),
        (CUDAGraphMode.PIECEWISE, GraphKinds(pieces=True)),
        (CUDAGraphMode.FULL_DECODE_ONLY, GraphKinds(decode=True)),
        (CUDAGraphMode.FULL_AND_PIECEWISE, GraphKinds(decode=True, pieces=True)),
    ],
)
def test_a_mode_says_which_steps_are_recorded(mode: CUDAGraphMode, kinds: GraphKinds) -> None:
    config = ModelConfig("llama", cudagraph_mode=mode)
    assert kinds_of(config, is_replayable=True) == kinds
    assert kinds_of(config, is_replayable=False) == kinds._replace(decode=False)


def test_decode_steps_alone_are_recorded_unless_more_is_asked_for() -> None:
    assert kinds_of(ModelConfig("llama"), is_replayable=True) == GraphKinds(decode=True)


class Captured:
    """Steps that were captured, as far as words go."""

    name = "piecewise"

    def replay(self, batch: Batch) -> Tensor | None:
        return None


@pytest.mark.parametrize("has_decode", [False, True])
def test_steps_that_are_captured_say_how_many(has_decode: bool) -> None:
    refused = CaptureResult(None, why_not="it waits")
    decode = CaptureResult(Captured(), 256, 35, 35) if has_decode else refused
    pieces = CaptureResult(Captured(), 2048, 20, 660)
    in_pieces = "cuda_graphs in pieces, 660 for 20 sizes of up to 2048 tokens"
    whole = "cuda_graphs, of up to 256 requests" if has_decode else in_pieces
    assert launch_words(decode, pieces) == (whole, in_pieces)
    assert launch_words(decode, refused) == (
        whole if has_decode else not_graphs("it waits"),
        not_graphs("it waits"),
    )
