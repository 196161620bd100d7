"""Checkpoints as quantisers publish them: the matrices of a tiny model are replaced by the parts
that a format stores, and what these stand for is the model to compare with."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from quire.models.config import ModelDtype
from quire.models.layers.lazy_weight import widened
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.loader import load_model
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
    """Write both; every `nn.Linear` of the layers is quantised."""
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


def _matrices(state: Mapping[str, Tensor]) -> Iterator[str]:
    for name in state:
        if ".layers." in name and name.endswith("_proj.weight"):
            yield name


def _save(folder: Path, state: Mapping[str, Tensor]) -> None:
    contiguous = {name: tensor.clone().contiguous() for name, tensor in state.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
