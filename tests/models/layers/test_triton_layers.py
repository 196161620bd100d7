"""Models that are made of Triton's kernels between the linear layers, in Triton's interpreter."""

from pathlib import Path

import pytest
import torch

from quire.models.config import AttentionBackendName, KVOptions
from quire.models.layers.decoder import DecoderForward
from quire.models.layers.fused_layers import GatedForward, NormForward
from quire.models.layers.plain_weight import PlainWeights
from quire.models.loading.loaded_model import LoadedModel
from tests.long import long_but_for
from tests.models.driver import generate_greedy, load
from tests.models.graphs.device import StandInDevice
from tests.models.graphs.test_graphed_model import recorded
from tests.models.layers.test_linears import PROMPT, load_packed, logits
from tests.models.layers.test_module_replacement import checkpoint, kinds_in
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Paging
from tests.models.reference import BLOCK_SIZE, MAX_LEN, References, fidelity_prompts
from tests.models.tape import Tape

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.layers.triton.choice import triton_kernels

WHOLE = ("qwen3", "gemma2")
PARTS = {"olmo2": {NormForward, GatedForward}}


def test_weights_may_be_joined_and_are_what_they_were() -> None:
    kernel, weights = PlainWeights(), [torch.randn(rows, 6) for rows in (3, 5)]
    packed = [kernel.pack(each) for each in weights]
    joined = kernel.join(packed)
    assert joined is not None
    x = torch.randn(2, 6)
    assert torch.equal(kernel.linear(x, joined, None), x @ torch.cat(weights).T)
    for each, before in zip(packed, weights, strict=True):
        assert torch.equal(kernel.unpack(each), before)
        assert torch.equal(kernel.rows(torch.tensor([2, 0]), each), before[[2, 0]])
        inside = joined.packed.untyped_storage().data_ptr()
        assert each.packed.untyped_storage().data_ptr() == inside


@long_but_for(PARTS, "name", [*WHOLE, *PARTS])
def test_a_model_says_what_it_said(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, name, num_hidden_layers=2)
    fused = load_packed(folder, triton_kernels(torch.device("cpu")), "float32")
    if name in PARTS:
        assert kinds_in(fused) == PARTS[name]
    else:
        assert DecoderForward in kinds_in(fused)
    assert_same_logits(logits(fused), logits(load(folder, "float32")), folder, len(PROMPT))


def num_kernels(loaded: LoadedModel) -> int:
    """The kernels of a step that decodes."""
    paging = Paging(1, 16, block_size=4)
    model = loaded.attach(paging.num_blocks, 4, KVOptions(attention=AttentionBackendName.TRITON))
    tape = Tape()
    with torch.inference_mode():
        model.forward(paging.batch([(0, 0, PROMPT)], rows=[0]))
        batch = paging.batch([(0, len(PROMPT), [7])], rows=[0])
        with tape.of_step():
            model.forward(batch)
    return len(tape.acts)


def test_a_layer_is_eleven_kernels(tmp_path: Path) -> None:
    """Four products, two norms, rotary embeddings, a gate, a sum, the write of K and V, and
    attention; without fused layers they are 35."""
    folders = [checkpoint(tmp_path, "llama", num_hidden_layers=number) for number in (1, 2)]
    one, two = (
        num_kernels(load_packed(each, triton_kernels(torch.device("cpu")), "float32"))
        for each in folders
    )
    assert two - one == 11
    one, two = (num_kernels(load(each, "float32")) for each in folders)
    assert two - one == 35


@pytest.mark.long  # whole starts that capture are in every run, and so is each kernel
def test_captured_steps_say_what_generate_says(references: References) -> None:
    loaded = load_packed(
        references.checkpoint("qwen3"), triton_kernels(torch.device("cpu")), "float32"
    )
    assert DecoderForward in kinds_in(loaded)
    prompts, device = fidelity_prompts()[:1], StandInDevice()
    paging = Paging(len(prompts), MAX_LEN, block_size=BLOCK_SIZE)
    graphed = recorded(loaded, paging, device, max_seqs=1)
    assert graphed.largest == 1 and not graphed.why_not
    texts = generate_greedy(graphed.model, paging, prompts, num_new=3, seed=3)
    assert texts == [text[:3] for text in references.greedy_texts("qwen3")[:1]]
    assert device.num_replays > 0
