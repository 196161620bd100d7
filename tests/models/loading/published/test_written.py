"""Checkpoints that the formats' own libraries wrote (`writers/`, `fixtures/README.md`): the weights
that the libraries make whole of them, and the tokens that models of these say."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from quire.models.loading.state_dict import lazy_state
from quire.models.weights.lazy_weight import widened
from tests.engine.test_fidelity import build, texts_of
from tests.long import long_but_for

FIXTURES = Path(__file__).parent / "fixtures"
ROWS_APART = 4
"""Of each weight every fourth row is kept."""
FLOAT32 = 2.0**-24
"""The rounding of one operation."""
ROUNDINGS = {
    "auto-round": 0,
    "auto-round-awq": 0,
    "awq": 0,
    "bitsandbytes-fp4": 0,
    "bitsandbytes-int8": 4,
    "bitsandbytes-nf4": 0,
    "compressed-tensors": 0,
    "compressed-tensors-packed": 0,
    "fp8": 0,
    "gptq": 0,
    "mlx": 0,
    "modelopt-fp8": 0,
    "modelopt-nvfp4": 0,
    "mxfp4": 0,
    "torchao": 0,
}
"""In float32, by which the library's order of multiplying differs from ours."""
IN_ENGINES = ("bitsandbytes-nf4", "compressed-tensors", "gptq", "mxfp4")
"""Floats in blocks, several formats in one, integers in groups, and experts: an engine takes the
others as it takes these."""
TOGETHER = 8
"""Requests for each prompt: so many that some are preempted."""


@pytest.mark.parametrize("name", ROUNDINGS)
def test_weights_are_those_of_the_library(name: str) -> None:
    reference = load_file(FIXTURES / name / "reference.safetensors")
    state = lazy_state(FIXTURES / name, torch.float32)
    kept = reference.keys() - {"prompts", "tokens"}
    assert len(kept) >= 7
    for each in kept:
        expected, found = reference[each], widened(state[each])[::ROWS_APART]
        if ROUNDINGS[name]:
            within = ROUNDINGS[name] * FLOAT32
            torch.testing.assert_close(found, expected, rtol=within, atol=0.0)
        else:
            assert torch.equal(found, expected), each


@long_but_for(IN_ENGINES, "name", ROUNDINGS)
def test_the_engine_says_what_the_library_says(name: str) -> None:
    """Requests that come together are cut into chunks and preempted."""
    reference = load_file(FIXTURES / name / "reference.safetensors")
    prompts, tokens = reference["prompts"].tolist(), reference["tokens"].tolist()
    texts = texts_of(build(FIXTURES / name), prompts * TOGETHER)
    assert [text[: len(tokens[0])] for text in texts] == tokens * TOGETHER
