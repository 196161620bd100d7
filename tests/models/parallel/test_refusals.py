"""What cannot be divided is refused before its weights are read, with the numbers."""

from pathlib import Path

import pytest
import torch

from quire.models.config import ModelDtype, UnsupportedModel
from quire.models.loading.preview import look_ahead
from quire.models.target import Target
from tests.models.checkpoints import save_checkpoint
from tests.models.families import DENSE, SERVED, Family
from tests.models.parallel.jobs import refusal_of
from tests.models.parallel.rank_processes import in_threads


def alike(name: str, **fields: object) -> Family:
    """A family of SERVED, with four attention heads for each of the ranks."""
    four = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return SERVED[name]._replace(fields={**SERVED[name].fields, **four, **fields})


FOUR_RANKS = Target(ModelDtype.AUTO, torch.device("cpu"), num_ranks=4)
REFUSED = {
    "KV heads": (
        Family("llama", fields={**DENSE, "num_attention_heads": 12, "num_key_value_heads": 6}),
        "NotDivisible: llama models are not served by 4 ranks: 6 KV heads do not divide among 4 "
        "ranks, but among 2, 3, 6",
    ),
    "attention heads": (
        SERVED["llama"],
        "NotDivisible: llama models are not served by 4 ranks: 6 attention heads do not divide",
    ),
    "one KV head": (
        Family("llama", fields={**DENSE, "num_attention_heads": 4, "num_key_value_heads": 1}),
        "1 KV heads do not divide among 4 ranks",
    ),
    "MLP": (
        Family(
            "llama",
            fields={
                **DENSE,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "intermediate_size": 66,
            },
        ),
        "66 elements of model.layers.0.mlp.gate_proj do not divide among 4 ranks, but among 2, 3",
    ),
    "key heads": (
        alike("qwen3_5_text", linear_num_key_heads=5, linear_num_value_heads=5),
        "NotDivisible: qwen3_5_text models are not served by 4 ranks: 5 key heads "
        "(linear_num_key_heads) do not divide among 4 ranks, but among 5",
    ),
    "value heads": (
        alike("qwen3_next", linear_num_key_heads=2, linear_num_value_heads=4),
        "2 key heads (linear_num_key_heads) do not divide among 4 ranks, but among 2",
    ),
    "Mamba heads": (
        alike("granitemoehybrid, Mamba-2", mamba_n_heads=6, mamba_n_groups=2),
        "6 Mamba heads (mamba_n_heads) do not divide among 4 ranks, but among 2, 3, 6",
    ),
    "groups of Mamba heads": (
        alike("nemotron_h", mamba_num_heads=12, n_groups=3),
        "3 groups of Mamba heads (n_groups) do not divide among 4 ranks, but among 3",
    ),
    "Mamba channels": (
        alike("falcon_mamba", intermediate_size=66),
        "66 channels (intermediate_size) do not divide among 4 ranks, but among 2, 3, 6, 11",
    ),
    "Jamba's channels": (
        alike("jamba", hidden_size=45),
        "90 channels (mamba_expand * hidden_size) do not divide among 4 ranks",
    ),
    "channels of short convolutions": (
        alike("lfm2", hidden_size=50, head_dim=8),
        "50 channels (hidden_size) do not divide among 4 ranks, but among 2, 5, 10, 25, 50",
    ),
    "heads of Kimi delta attention": (
        alike("kimi_linear", linear_num_heads=6),
        "6 heads (linear_num_heads) do not divide among 4 ranks, but among 2, 3, 6",
    ),
    "no plan": (SERVED["gpt2"], "gpt2 models are not supported: transformers has no plan"),
    "latent": (SERVED["deepseek_v3"], "latent attention is not divided"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_divide_is_refused_with_the_numbers(name: str, tmp_path: Path) -> None:
    family, why = REFUSED[name]
    folder = save_checkpoint(family, tmp_path)
    for file in folder.glob("*.safetensors"):
        _spoil(file)
    for said in in_threads(4, lambda group: refusal_of(group, folder)):
        assert why in said
    with pytest.raises(UnsupportedModel) as refusal:
        look_ahead(folder, FOUR_RANKS, trust_remote_code=False)
    assert why.rpartition(": ")[2] in str(refusal.value)


def test_code_of_their_own_is_refused(tmp_path: Path) -> None:
    folder, why = save_checkpoint(SERVED["llama"], tmp_path), "code of their own"
    for said in in_threads(4, lambda group: refusal_of(group, folder, True)):
        assert why in said
    with pytest.raises(UnsupportedModel, match=why):
        look_ahead(folder, FOUR_RANKS, trust_remote_code=True)


def _spoil(file: Path) -> None:
    """Leave of the weights NaN alone, so that reading them would be another refusal."""
    content = file.read_bytes()
    first = 8 + int.from_bytes(content[:8], "little")
    file.write_bytes(content[:first] + b"\xff" * (len(content) - first))
