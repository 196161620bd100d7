"""Models that are written to GGUF files, and read from them as the same models."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from quire.models.config import CheckpointError
from quire.models.loading.checkpoint import ModelSource, locate
from quire.models.loading.gguf.ggml_types import GGML_TYPES
from quire.models.loading.gguf.weights import BlockWeight, read_weights
from quire.models.weights.lazy_weight import LazyWeight, narrow, widened
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED, Family
from tests.models.loading.gguf.writer import (
    Scalar,
    add_fields,
    add_vocabulary,
    letters,
    weights_of,
    write,
    write_model,
)
from tests.models.loading.hostile.gguf_parts import taken_apart

IDS = torch.arange(2, 40)[None]
LLAMA3 = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
}
HEAD = {"head_dim": 16, "query_pre_attn_scalar": 16}
EXPERTS = {"expert_count": 4, "expert_used_count": 2}
WINDOW = {"attention.sliding_window": 9}


class Case(NamedTuple):
    """A family of models, its architecture in files, and fields of it beside the usual ones."""

    family: Family
    architecture: str
    more: Mapping[str, Scalar] = {}


def family(name: str, **fields: object) -> Family:
    return SERVED[name]._replace(fields={**SERVED[name].fields, **fields})


CASES = {
    "llama": Case(family("llama"), "llama", {"rope.dimension_count": 12}),
    "llama, its own head": Case(family("llama", tie_word_embeddings=False), "llama"),
    "llama, biases": Case(family("llama", attention_bias=True, mlp_bias=True), "llama"),
    "llama, stretched": Case(
        family("llama", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}),
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama, YaRN": Case(
        family(
            "llama",
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
            },
        ),
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "qwen2": Case(family("qwen2"), "qwen2"),
    "qwen3": Case(family("qwen3"), "qwen3"),
    "granite": Case(
        family(
            "granite",
            embedding_multiplier=2.0,
            attention_multiplier=0.25,
            residual_multiplier=0.5,
            logits_scaling=3.0,
        ),
        "granite",
        {
            "embedding_scale": 2.0,
            "attention.scale": 0.25,
            "residual_scale": 0.5,
            "logit_scale": 3.0,
        },
    ),
    "olmo2": Case(family("olmo2"), "olmo2"),
    "mixtral": Case(family("mixtral"), "llama", EXPERTS),
    "qwen3_moe": Case(
        family("qwen3_moe", norm_topk_prob=True),
        "qwen3moe",
        {**EXPERTS, "expert_feed_forward_length": 16},
    ),
    "olmoe": Case(family("olmoe"), "olmoe", EXPERTS),
    "gpt_oss": Case(
        family("gpt_oss", sliding_window=9),
        "gpt-oss",
        {**EXPERTS, **WINDOW, "expert_feed_forward_length": 64},
    ),
    "smollm3": Case(family("smollm3", num_hidden_layers=5), "smollm3"),
    "glm4": Case(family("glm4"), "glm4", {"rope.dimension_count": 6}),
    "seed_oss": Case(family("seed_oss"), "seed_oss"),
    "ernie4_5": Case(family("ernie4_5"), "ernie4_5"),
    "phi3": Case(family("phi3"), "phi3"),
    "phi3, window": Case(family("phi3, window"), "phi3", {"attention.sliding_window": 13}),
    "phi3, long rope": Case(
        family("phi3, long rope"), "phi3", {"rope.scaling.original_context_length": 128}
    ),
    "gemma": Case(family("gemma", tie_word_embeddings=True), "gemma"),
    "gemma2": Case(
        family("gemma2", tie_word_embeddings=True, **HEAD),
        "gemma2",
        {**WINDOW, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": Case(family("gemma3_text", **HEAD), "gemma3", WINDOW),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_model_is_the_one_that_was_written(case: Case, tmp_path: Path) -> None:
    folder = save_checkpoint(case.family, tmp_path / "whole")
    file = tmp_path / "model.gguf"
    write_model(folder, file, case.architecture, more=case.more)
    found, expected = logits_of(locate_file(file), file), logits_of(folder)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "BF16", "F16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_blocks_become_the_numbers_that_they_hold(
    kind: str, architecture: str, tmp_path: Path
) -> None:
    """In their order too, where rows are put back: the same numbers as the library's, permuted."""
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    folder = save_checkpoint(family(architecture, **sizes), tmp_path / "whole")
    file = tmp_path / "model.gguf"
    write_model(folder, file, architecture, kind=gguf.GGMLQuantizationType[kind])
    theirs = weights_of(file)
    mine = read_weights(file, torch.float32)
    for name, part in (("mlp.down_proj", "ffn_down"), ("self_attn.k_proj", "attn_k")):
        weight = mine[f"model.layers.1.{name}.weight"]
        assert isinstance(weight, LazyWeight) == (kind not in ("BF16", "F16"))
        rows = torch.from_numpy(theirs[f"blk.1.{part}.weight"].copy())
        if architecture == "llama" and part == "attn_k":
            rows = rows.view(2, 8, 2, -1).transpose(1, 2).reshape(rows.shape)
        assert torch.equal(widened(weight), rows)


@pytest.mark.parametrize("kind", ["MXFP4", "Q8_0", "F16"])
def test_experts_become_the_numbers_that_they_hold(kind: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 32, "head_dim": 16}
    folder = save_checkpoint(family("gpt_oss", sliding_window=9, **sizes), tmp_path / "whole")
    file = tmp_path / "model.gguf"
    more = {**EXPERTS, **WINDOW, "expert_feed_forward_length": 32}
    write_model(folder, file, "gpt-oss", kind=gguf.GGMLQuantizationType[kind], more=more)
    theirs = weights_of(file)
    mine = read_weights(file, torch.float32)["model.layers.1.mlp.experts.gate_up_proj"]
    assert mine.shape == (4, 64, 64)
    for first, part in enumerate(("gate", "up")):
        expected = torch.from_numpy(theirs[f"blk.1.ffn_{part}_exps.weight"]).transpose(1, 2)
        assert torch.equal(mine[..., first::2], expected)


def test_experts_without_a_part_are_told(tmp_path: Path) -> None:
    folder = save_checkpoint(family("qwen3_moe"), tmp_path / "whole")
    file = tmp_path / "model.gguf"
    write_model(folder, file, "qwen3moe", more={**EXPERTS, "expert_feed_forward_length": 16})
    parts = taken_apart(file.read_bytes())
    parts.tensors = [each for each in parts.tensors if each.name != b"blk.1.ffn_up_exps.weight"]
    file.write_bytes(parts.written())
    with pytest.raises(CheckpointError, match="its experts do not fit together: .*up.weight"):
        read_weights(file, torch.float32)


@pytest.mark.parametrize(
    ("dim", "start", "length", "stays"),
    [(0, 3, 4, True), (1, 32, 64, True), (1, 16, 32, False), (1, 0, 33, False)],
)
def test_a_part_of_a_matrix_is_that_of_its_numbers(
    dim: int, start: int, length: int, stays: bool
) -> None:
    """It stays in blocks where it is whole ones."""
    kind = GGML_TYPES[8]
    numbers = torch.randn(8, 128, generator=torch.Generator().manual_seed(0)).numpy()
    content = torch.from_numpy(gguf.quantize(numbers, gguf.GGMLQuantizationType.Q8_0))
    whole = LazyWeight(BlockWeight(content, kind, torch.bfloat16))
    part = narrow(whole, dim, start, length)
    assert isinstance(part, LazyWeight) == stays
    assert torch.equal(widened(part), widened(whole).narrow(dim, start, length))


def test_the_scaling_of_llama_3_is_told_by_its_factors(tmp_path: Path) -> None:
    sizes = {"head_dim": 64, "vocab_size": 101, "hidden_size": 32, "max_position_embeddings": 65536}
    config = AutoConfig.for_model("llama", num_hidden_layers=1, **sizes, **LLAMA3)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    turning = model.model.rotary_emb
    plain = 500000.0 ** (-torch.arange(0, 64, 2) / 64)
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    add_fields(writer, "llama", config, {})
    add_vocabulary(writer, letters(101))
    writer.add_tensor("token_embd.weight", torch.zeros(101, 32).numpy())
    writer.add_tensor("rope_freqs.weight", (plain / turning.inv_freq).numpy())
    write(writer)
    found = AutoConfig.from_pretrained(locate_file(file)).rope_parameters
    assert found == config.rope_parameters


def test_what_has_no_place_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(family("qwen3"), tmp_path / "whole")
    file = tmp_path / "model.gguf"
    write_model(folder, file, "qwen3")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"blk.1.attn_q_norm", b"blk.1.attn_x_norm"))
    with pytest.raises(
        CheckpointError, match=r"blk\.1\.attn_x_norm\.weight' \[16\], for which Qwen3"
    ):
        read_weights(file, torch.float32)


def locate_file(file: Path) -> Path:
    return locate(ModelSource(str(file)), lambda phase, done, total: None)


def logits_of(folder: Path, file: Path | None = None) -> torch.Tensor:
    """Return what transformers makes of the configuration of a folder, with its weights, or those
    of a file."""
    if file is None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        state = {name: widened(each) for name, each in read_weights(file, torch.float32).items()}
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}
        model.tie_weights()
    with torch.inference_mode():
        torch.nn.Module.train(model, mode=False)
        logits: torch.Tensor = model(IDS).logits
    return logits
