"""Triton's products by weights in groups against the same numbers in float64, in Triton's
interpreter."""

from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from quire.models.layers.decoder import DecoderForward
from quire.models.layers.model_kernels import ModelKernels
from quire.models.layers.plain_weight import PlainWeights
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.weights.lazy_weight import StoredWeight
from quire.models.weights.weight_kernel import WeightOutline
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.layers.random_groups import FORMS, UNIT, made
from tests.models.layers.test_linears import load_packed, logits
from tests.models.loading.gguf.writer import write_model

pytest.importorskip("triton", reason="triton is not installed")
from quire.models.layers.triton.choice import triton_kernels
from quire.models.layers.triton.grouped import MANY_ROWS, TritonGrouped

KERNEL = TritonGrouped(torch.device("cpu"))
DTYPES = (torch.float32, torch.float16)


def assert_is_product(found: Tensor, x: Tensor, stored: StoredWeight, bias: Tensor | None) -> None:
    """Within what rounding explains: W is rounded once, each of the sum's K steps in float32, and
    the result."""
    wide, rows = stored.values().double(), x.double()
    expected = rows @ wide.T + (0 if bias is None else bias.double())
    size = rows.abs() @ wide.abs().T + (0 if bias is None else bias.double().abs())
    steps = (x.shape[-1] + 2) * UNIT[torch.float32]
    assert ((found.double() - expected).abs() <= size * (steps + UNIT[x.dtype])).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_products_are_those_of_the_numbers(
    form: tuple[int, int, torch.dtype, bool], dtype: torch.dtype
) -> None:
    stored = made(37, dtype, form)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(0)).to(dtype)
    bias = torch.randn(37, generator=torch.Generator().manual_seed(1)).to(dtype)
    packed = KERNEL.pack_stored(stored)
    assert_is_product(KERNEL.linear(x, packed, bias), x, stored, bias)
    assert torch.equal(KERNEL.unpack(packed), stored.values())


@pytest.mark.parametrize("num_rows", [0, 1, 17, 65, MANY_ROWS + 1])
def test_any_number_of_rows(num_rows: int) -> None:
    """Columns that are no whole runs, and a tile of rows that is not full."""
    stored = made(70, torch.float32, num_columns=32)
    x = torch.randn(2, num_rows, 32, generator=torch.Generator().manual_seed(2))
    found = KERNEL.linear(x, KERNEL.pack_stored(stored), None)
    assert found.shape == (2, num_rows, 70)
    assert_is_product(found.flatten(0, 1), x.flatten(0, 1), stored, None)


def test_a_row_alone_is_that_row_in_company() -> None:
    stored = made(33, torch.float16, num_columns=160)
    packed = KERNEL.pack_stored(stored)
    x = torch.randn(16, 160, generator=torch.Generator().manual_seed(3)).half()
    together = KERNEL.linear(x, packed, None)
    for row in (0, 7, 15):
        assert torch.equal(KERNEL.linear(x[row : row + 1], packed, None)[0], together[row])


def test_joined_weights_are_one_of_all_their_rows() -> None:
    parts = [made(num_rows, torch.float16) for num_rows in (5, 40)]
    packed = [KERNEL.pack_stored(each) for each in parts]
    whole = KERNEL.join(packed)
    assert whole is not None and whole.num_rows == 45
    assert torch.equal(KERNEL.unpack(whole), torch.cat([each.values() for each in parts]))
    assert packed[1].packed.data_ptr() > whole.packed.data_ptr()
    indices = torch.tensor([[44, 0], [7, 7]])
    assert torch.equal(KERNEL.rows(indices, whole), KERNEL.unpack(whole)[indices])


def test_joined_weights_of_several_forms_are_multiplied_one_after_the_other() -> None:
    parts = [made(5 + index, torch.float32, FORMS[index]) for index in (0, 3, 3, 11)]
    whole = KERNEL.join([KERNEL.pack_stored(each) for each in parts])
    assert whole is not None
    assert torch.equal(KERNEL.unpack(whole), torch.cat([each.values() for each in parts]))
    x = torch.randn(2, 96, generator=torch.Generator().manual_seed(5))
    bias = torch.randn(whole.num_rows, generator=torch.Generator().manual_seed(6))
    alone = [KERNEL.linear(x, KERNEL.pack_stored(each), None) for each in parts]
    torch.testing.assert_close(KERNEL.linear(x, whole, bias), torch.cat(alone, -1) + bias)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_planned_bytes_are_those_that_are_packed(form: tuple[int, int, torch.dtype, bool]) -> None:
    """Four bits take half of what eight do, beside the scales."""
    stored = made(9, torch.float16, form)
    outline = WeightOutline(9, 96, torch.float16, None, stored.weight.form)
    assert KERNEL.planned_bytes(outline) == KERNEL.pack_stored(stored).packed.nbytes
    assert KERNEL.planned_bytes(outline._replace(form=None)) is None


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
