"""Checkpoints as quantisers publish them: the matrices of a tiny model are replaced by the parts
that a format stores, and what these stand for is the model to compare with."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire.models.config import ModelDtype
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loader import load_model
from quire.models.loading.state_dict import lazy_state
from quire.models.weights.lazy_weight import widened
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED, Family

WIDE = SERVED["llama"]._replace(
    fields={
        **SERVED["llama"].fields,
        **dict.fromkeys(("hidden_size", "intermediate_size"), 64),
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    }
)
"""Layers whose rows are whole groups and words."""


_QUANTISED = re.compile(r"\.layers\..*((_proj|_proj_with_mqa|\.w\d)\.weight|\.experts\.\w+_proj)$")


class Stored(NamedTuple):
    """The parts of a matrix by their names' endings, as `.qweight`, and what they stand for."""

    parts: Mapping[str, Tensor]
    values: Tensor


Quantise = Callable[[str, Tensor], Stored]
"""Takes the name of a layer and its weight [N, K] of float32."""


class Published(NamedTuple):
    """A quantised checkpoint, and one of what its weights stand for, in float32."""

    folder: Path
    reference: Path


def publish(
    tmp_path: Path,
    settings: Mapping[str, object],
    quantise: Quantise,
    family: Family = WIDE,
    *,
    field: str = "quantization_config",
) -> Published:
    """Write both; every `nn.Linear` of the layers is quantised, and the experts that are stored in
    one tensor, whose parts follow their name."""
    folder = save_checkpoint(family, tmp_path / "quantised")
    reference = save_checkpoint(family, tmp_path / "reference")
    state = load_file(folder / "model.safetensors")
    plain = dict(state)
    for name in list(_matrices(state)):
        stored = quantise(name.removesuffix(".weight"), state.pop(name))
        module = name.removesuffix(".weight")
        state.update({module + ending: part for ending, part in stored.parts.items()})
        plain[name] = stored.values.float()
    _save(folder, state)
    _save(reference, plain)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: settings}))
    return Published(folder, reference)


def check_loaded(published: Published) -> None:
    """Assert that the model which is loaded has the weights of the reference to the bit."""
    loaded = load_model(
        ModelSource(str(published.folder)),
        dtype=ModelDtype.FLOAT32,
        device=torch.device("cpu"),
        on_progress=lambda phase, done, total: None,
    )
    reference = AutoModelForCausalLM.from_pretrained(published.reference, dtype=torch.float32)
    expected = dict(reference.named_parameters())
    found = dict(loaded.module.named_parameters())
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(widened(found[name]), weight), name


def check_state(published: Published) -> None:
    """Assert that the weights which are read are those of the reference to the bit."""
    expected = load_file(published.reference / "model.safetensors")
    found = lazy_state(published.folder, torch.float32)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(widened(found[name]), weight), name


def random(weight: Tensor, shape: Sequence[int], limit: int) -> Tensor:
    """Return whole numbers below `limit`, others for each weight and limit."""
    seed = int(weight.abs().sum() * 1000) + limit
    return torch.randint(0, limit, tuple(shape), generator=torch.Generator().manual_seed(seed))


def in_words(numbers: Tensor, num_bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Return [A, B] as words [A, B x bits / 32] of int32: one long run of bits in each row, the
    first number in the lowest ones; `order` is that of the numbers of each word."""
    if order is not None:
        numbers = numbers.view(len(numbers), -1, len(order))[..., list(order)].flatten(1)
    bits = numbers.numpy().astype(np.uint8)[..., None] >> np.arange(num_bits, dtype=np.uint8) & 1
    rows = np.packbits(bits.reshape(len(numbers), -1), axis=1, bitorder="little")
    return torch.from_numpy(rows).view(torch.int32)


def _matrices(state: Mapping[str, Tensor]) -> Iterator[str]:
    return (name for name in state if _QUANTISED.search(name))


def _save(folder: Path, state: Mapping[str, Tensor]) -> None:
    contiguous = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
