"""What products in Triton's interpreter by weights in groups have of their own, beside what every
kernel of linear layers must do."""

from pathlib import Path

import gguf
import pytest
import torch

from quire.models.layers.decoder import DecoderForward
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.plain_weight import PlainWeights
from quire.models.loading.checkpoint import ModelSource, locate
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.layers.random_groups import made
from tests.models.layers.test_linears import load_packed, logits
from tests.models.loading.gguf.writer import write_model
from tests.models.rounding import assert_within
from tests.models.weights.formats import FORMATS
from tests.models.weights.subject import Subject

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.layers.triton.choice import triton_kernels
from quire.models.layers.triton.grouped import MANY_ROWS, TritonGrouped

FORMAT = FORMATS["triton grouped"]
KERNEL = TritonGrouped(torch.device("cpu"))


@pytest.mark.parametrize("num_rows", [0, 1, 17, 65, MANY_ROWS + 1])
def test_any_number_of_rows(num_rows: int) -> None:
    """Columns that are no whole runs, and a tile of rows that is not full."""
    stored = made(70, torch.float32, num_columns=32)
    x = torch.randn(2, num_rows, 32, generator=torch.Generator().manual_seed(2))
    found = KERNEL.linear(x, KERNEL.pack_stored(stored), None)
    assert found.shape == (2, num_rows, 70)
    exact = Subject(KERNEL, FORMAT).exact(x.flatten(0, 1), stored, None)
    assert_within(found.flatten(0, 1), exact)


def test_others_are_not_taken() -> None:
    assert not KERNEL.takes(torch.zeros(4, 4))
    assert not KERNEL.takes_stored(made(4, torch.float64))
    with pytest.raises(ValueError, match="only weights that are stored in groups"):
        KERNEL.pack(torch.zeros(4, 4))


def test_a_model_of_a_gguf_file_stays_in_its_bits(tmp_path: Path) -> None:
    """Queries and keys of four bits beside values of eight, and a head that embeds."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "head_dim": 16,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
    }
    llama = SERVED["llama"]
    family = llama._replace(fields={**llama.fields, **sizes, "num_key_value_heads": 2})
    folder = save_checkpoint(family, tmp_path / "whole")
    kinds = {"attn_v": gguf.GGMLQuantizationType.Q8_0, "": gguf.GGMLQuantizationType.Q4_0}
    write_model(folder, tmp_path / "model.gguf", "llama", kind=kinds)
    located = locate(ModelSource(str(tmp_path / "model.gguf")), lambda phase, done, total: None)
    grouped = load_packed(located, triton_kernels(torch.device("cpu")), "float32")
    plain = load_packed(located, ModelKernels((PlainWeights(),)), "float32")
    assert isinstance(vars(grouped.module)["forward"], DecoderForward)
    assert not grouped.left_out
    torch.testing.assert_close(logits(grouped), logits(plain), rtol=1e-3, atol=1e-3)
    assert grouped.weight_bytes < 0.3 * plain.weight_bytes
