"""Cross-encoders: encoders with a head that makes one score of the first token of a pair of texts,
as sentence-transformers and transformers store them.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire.models.config import CheckpointError
from quire.models.loading.published.place import CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ScoringHead = Callable[[Tensor], Tensor]
"""Makes scores [rows, 1] of the states of first tokens [rows, hidden_size]."""
ACTIVATIONS = ("Sigmoid", "Identity")
OLD_ACTIVATION = "sbert_ce_default_activation_function"


def scoring_head(module: "PreTrainedModel") -> ScoringHead:
    """Return the head of a model for sequence classification, as its own forward applies it."""
    classifier = _part(module, "classifier")
    match module.config.model_type:
        case "bert":
            pooler = _part(module.base_model, "pooler")
            return lambda states: classifier(pooler(states[:, None]))
        case "distilbert":
            before = _part(module, "pre_classifier")
            return lambda states: classifier(before(states).relu())
        case _:
            return lambda states: classifier(states[:, None])


def _part(module: nn.Module, name: str) -> nn.Module:
    return module.get_submodule(name)


def is_sigmoid(folder: Path) -> bool:
    """Return whether scores go through a sigmoid, as they do by default; else they stay as they
    are. Raises CheckpointError for another activation."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    newer = config.get("sentence_transformers")
    stated = newer.get("activation_fn") if isinstance(newer, Mapping) else None
    stated = stated or config.get(OLD_ACTIVATION) or ACTIVATIONS[0]
    name = str(stated).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise CheckpointError(f"{folder}: its scores want the activation {stated}, not supported")
    return name == ACTIVATIONS[0]
