"""Models with recurrent layers are checked by small copies before their weights are read, whatever
their size."""

from pathlib import Path

import pytest
from transformers import AutoConfig, PretrainedConfig

from quire.models.loading import pretrained
from quire.models.loading.checks.structure import check_structure
from tests.models.families import Fields

TURNS = (["conv", "conv", "full_attention"] * 8)[:24]
LAYERS = (["linear_attention"] * 5 + ["full_attention"] + ["linear_attention"] * 4) * 4
PUBLISHED: dict[str, Fields] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "falcon_h1": {
        "hidden_size": 1024,
        "num_hidden_layers": 36,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
    },
    "falcon_mamba": {},
    "granitemoehybrid": {"layer_types": LAYERS, "num_hidden_layers": 40},
    "jamba": {},
    "kimi_linear": {},
    "lfm2": {"num_hidden_layers": 16, "layer_types": TURNS[:16], "hidden_size": 1024},
    "lfm2_moe": {"num_hidden_layers": 24, "layer_types": TURNS, "num_dense_layers": 2},
    "mamba": {},
    "mamba2": {},
    "nemotron_h": {"hybrid_override_pattern": "MEMEM*EMEMEM*EMEM-"},
    "olmo_hybrid": {},
    "qwen3_5": {},
    "qwen3_5_moe": {},
    "qwen3_5_text": {},
    "qwen3_next": {},
    "zamba2": {"num_mem_blocks": 2, "n_mamba_heads": 80},
}
"""Sizes as published, or nearly."""


def check(config: PretrainedConfig) -> bool:
    return check_structure(config, pretrained.build_without_weights(Path("of-a-test"), config))


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_a_model_of_published_size_has_a_small_copy(model_type: str) -> None:
    assert check(AutoConfig.for_model(model_type, **PUBLISHED[model_type]))
