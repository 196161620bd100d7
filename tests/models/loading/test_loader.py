"""What loads says what it is; what cannot be served right is refused by name, and why."""

import json
import logging
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire.models.attention.latent import LatentHook, keep_latent
from quire.models.config import (
    CheckpointError,
    FailedCheck,
    KVOptions,
    ModelDtype,
    UnsupportedModel,
)
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.dtype_choice import choose_dtype
from quire.models.loading.loader import load_model
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import load
from tests.models.families import DENSE, VOCAB, Family
from tests.models.logits_error import assert_same_logits
from tests.models.paging import Paging
from tests.models.reference import References
from tests.models.refused_families import REFUSED
from tests.rounding import compounded

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = Family("qwen2", fields={**DENSE, "tie_word_embeddings": True})
    return save_checkpoint(family, tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def copy(qwen2: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(qwen2, tmp_path / "copy"))


def edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_facts_are_those_of_the_checkpoint(qwen2: Path) -> None:
    loaded = load(qwen2)
    facts = loaded.facts
    assert (facts.model_type, facts.vocab_size, facts.max_model_len) == ("qwen2", VOCAB, 128)
    assert facts.num_layers == 3
    assert [layer.index for layer in facts.layers] == [0, 1, 2]
    assert {(layer.num_kv_heads, layer.head_size, layer.window_size) for layer in facts.layers} == {
        (2, 8, None)
    }
    assert facts.layers[0].scale == 8**-0.5
    assert (facts.dtype, facts.dtype_bytes) == ("float32", 4)
    assert facts.layout(KVOptions()).block_bytes(16) == 16 * 3 * 2 * 2 * 8 * 4


@pytest.fixture(params=[True, False])
def fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this CPU multiplies bfloat16 fast."""
    fast: bool = request.param
    monkeypatch.setattr("quire.models.loading.dtype_choice.cpu_has_fast_bfloat16", lambda: fast)
    return fast


@pytest.mark.parametrize("dtype", ["auto", "float32"])
@pytest.mark.parametrize("is_stated", [True, False])
def test_float32_runs_in_bfloat16_where_that_is_fast_and_the_log_says_what_keeps_it(
    *, copy: Path, is_stated: bool, dtype: str, fast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.models.loading.dtype_choice")
    if not is_stated:
        edit_json(copy / "config.json", dtype=None)
    facts = load(copy, dtype=dtype).facts
    is_cut = fast and dtype == "auto"
    assert facts.dtype == ("bfloat16" if is_cut else "float32")
    said = "weights stored in float32 run in bfloat16 on this CPU; --dtype float32 keeps float32"
    assert caplog.text.count(said) == is_cut
    assert ("run in" in caplog.text) == is_cut


def test_weights_shared_by_embedding_and_head_count_once(qwen2: Path) -> None:
    stored = sum(tensor.nbytes for tensor in load_file(qwen2 / "model.safetensors").values())
    assert stored <= load(qwen2).weight_bytes <= stored + 1024


def test_windows_are_known_by_layer(references: References) -> None:
    facts = load(references.checkpoint("qwen2, windows in the upper layers")).facts
    assert [layer.window_size for layer in facts.layers] == [None, 9, 9]


def test_chunks_and_soft_caps_are_known_by_layer(references: References) -> None:
    chunked = load(references.checkpoint("llama4_text")).facts
    assert [layer.chunk_size for layer in chunked.layers] == [16, 16, 16, None]
    capped = load(references.checkpoint("gemma2")).facts
    assert [layer.softcap for layer in capped.layers] == [5.0] * 4


def test_scale_is_known_by_layer(references: References) -> None:
    facts = load(references.checkpoint("gpt2, scaled by layer")).facts
    scales = [layer.scale / facts.layers[0].scale for layer in facts.layers]
    assert scales == pytest.approx([1, 1 / 2, 1 / 3], rel=compounded(2))


def test_latent_attention_keeps_one_vector_and_no_second_copy_of_weights(
    references: References,
) -> None:
    checkpoint = references.checkpoint("deepseek_v3")
    loaded = load(checkpoint)
    rank, rotary = 16, 8
    assert all(layer.is_latent for layer in loaded.facts.layers)
    assert {
        (layer.num_kv_heads, layer.head_size, layer.v_head_size) for layer in loaded.facts.layers
    } == {(1, rank + rotary, rank)}
    one_vector = (rank + rotary) * 4
    assert loaded.facts.layout(KVOptions()).block_bytes(8) == 8 * 2 * one_vector
    weight = loaded.module.get_parameter("model.layers.0.self_attn.kv_b_proj.weight")
    hook = loaded.module.get_submodule("model.layers.0.self_attn").quire_attention_hook
    assert isinstance(hook, LatentHook)
    for half in (hook.key_up, hook.value_up):
        assert half.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()


def test_a_bias_on_latent_keys_is_refused() -> None:
    attention = torch.nn.Module()
    attention.kv_b_proj = torch.nn.Linear(4, 4, bias=True)
    attention.expand_kv = lambda latent, rotary: (latent, rotary)  # type: ignore[assignment]
    with pytest.raises(UnsupportedModel, match="bias"):
        keep_latent(attention, "biased")


@pytest.mark.parametrize(
    ("in_generation_config", "in_config", "expected"),
    [([5, 7], 9, (5, 7)), (5, 9, (5,)), (None, 9, (9,)), (None, [9, 8], (9, 8)), (None, None, ())],
)
def test_end_tokens(
    copy: Path, in_generation_config: object, in_config: object, expected: tuple[int, ...]
) -> None:
    edit_json(copy / "config.json", eos_token_id=in_config)
    if in_generation_config is None:
        (copy / "generation_config.json").unlink()
    else:
        edit_json(copy / "generation_config.json", eos_token_id=in_generation_config)
    assert load(copy).facts.eos_token_ids == expected


def test_head_dim_and_kv_heads_need_not_be_stated(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config.pop("head_dim", None)
    (copy / "config.json").write_text(json.dumps(config))
    assert load(copy).facts.layers[0].head_size == 8


def test_progress_rises_to_its_end_in_every_phase(qwen2: Path) -> None:
    calls: list[tuple[str, int, int]] = []

    def note(phase: str, done: int, total: int) -> None:
        calls.append((phase, done, total))

    load_model(ModelSource(str(qwen2)), dtype=ModelDtype.AUTO, device=CPU, on_progress=note)
    phases = list(dict.fromkeys(phase for phase, _, _ in calls))
    assert phases == ["weights", "probe"]
    for phase in phases:
        done = [n for name, n, _ in calls if name == phase]
        totals = {total for name, _, total in calls if name == phase}
        assert done == sorted(done)
        assert totals == {done[-1]}


def test_loading_prints_nothing(qwen2: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(qwen2)
    assert capfd.readouterr() == ("", "")


def test_two_models_over_one_module_keep_their_own_keys_and_values(qwen2: Path) -> None:
    loaded = load(qwen2)
    first, second = loaded.attach(9, 8), loaded.attach(9, 8)
    paging = Paging(1, 64, block_size=8)
    first.forward(paging.batch([(0, 0, [1, 2, 3])]))
    second.forward(paging.batch([(0, 0, [4, 5, 6])]))
    logits = first.forward(paging.batch([(0, 3, [7])]))
    again = second.forward(paging.batch([(0, 0, [1, 2, 3, 7])]))
    assert_same_logits(logits, again, qwen2, num_tokens=4)


def test_one_block_is_enough_to_run_a_fresh_chunk_of_any_length(qwen2: Path) -> None:
    model = load(qwen2).attach(1, 16)
    batch = Paging(1, 128, block_size=16).batch([(0, 0, [1] * 100)], slots=[0] * 100)
    batch = replace(batch, block_tables=tuple(map(torch.zeros_like, batch.block_tables)))
    assert model.forward(batch).shape == (1, VOCAB)


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_would_be_served_wrongly_are_refused_before_their_weights_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, why = REFUSED[name]
    save_checkpoint(family, tmp_path)
    monkeypatch.delattr("quire.models.loading.pretrained.load_module")
    with pytest.raises(UnsupportedModel, match=why) as refusal:
        load(tmp_path)
    assert str(refusal.value).startswith(f"{family.model_type} models are not supported: ")


def test_an_attention_argument_that_is_not_understood_is_refused_by_name(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention

    ordinary: Callable[..., object] = Qwen2Attention.forward

    def slanted(self: Qwen2Attention, *args: object, **options: object) -> object:
        return ordinary(self, *args, **options, alibi_slopes=torch.ones(6))

    monkeypatch.setattr(Qwen2Attention, "forward", slanted)
    with pytest.raises(UnsupportedModel, match="the attention argument alibi_slopes"):
        load(qwen2)


def test_a_module_that_says_otherwise_with_its_own_attention_is_refused(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2 import modeling_qwen2

    ordinary: Callable[..., tuple[torch.Tensor, object]] = modeling_qwen2.eager_attention_forward

    def doubled(*args: object, **options: object) -> tuple[torch.Tensor, object]:
        out, weights = ordinary(*args, **options)
        return out * 2, weights

    monkeypatch.setattr(modeling_qwen2, "eager_attention_forward", doubled)
    with pytest.raises(UnsupportedModel, match="something else"):
        load(qwen2)


def test_a_module_that_ignores_positions_is_refused(
    qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

    ordinary: Callable[..., tuple[torch.Tensor, torch.Tensor]] = Qwen2RotaryEmbedding.forward

    def blind(
        self: Qwen2RotaryEmbedding, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return ordinary(self, x, torch.arange(position_ids.shape[1])[None])

    monkeypatch.setattr(Qwen2RotaryEmbedding, "forward", blind)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(FailedCheck, match="change each other .* no option helps"):
            load(qwen2, dtype)


def test_weights_that_overflow_their_dtype_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    weights["model.norm.weight"].fill_(torch.inf)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModel, match="overflow"):
        load(copy)


def test_a_checkpoint_that_lacks_weights_is_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="model.layers.1.mlp.up_proj.weight"):
        load(copy)


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        load(tmp_path / "nowhere")


def test_a_file_is_not_a_folder(qwen2: Path) -> None:
    with pytest.raises(CheckpointError, match="give the folder that holds it"):
        load(qwen2 / "model.safetensors")


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load(tmp_path)


def test_a_configuration_of_no_known_model(copy: Path) -> None:
    edit_json(copy / "config.json", model_type="palimpsest")
    with pytest.raises(CheckpointError, match="palimpsest"):
        load(copy)


def test_a_folder_without_weights(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        load(copy)


def test_pickled_weights_are_named_and_never_opened(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"only as pickles \(pytorch_model\.bin\)"):
        load(copy)


def test_broken_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\0" * 64)
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        load(copy)


def test_code_in_a_checkpoint_is_not_run_unless_asked(copy: Path) -> None:
    edit_json(
        copy / "config.json",
        model_type="homemade",
        auto_map={"AutoConfig": "code.Homemade", "AutoModelForCausalLM": "code.Homemade"},
    )
    (copy / "code.py").write_text("raise SystemExit('the code has run')")
    with pytest.raises(CheckpointError, match="trust_remote_code"):
        load(copy)


@pytest.mark.parametrize(
    ("asked", "stored", "expected"),
    [
        (ModelDtype.AUTO, None, None),
        (ModelDtype.AUTO, torch.float64, torch.float64),
        (ModelDtype.FLOAT16, torch.float32, torch.float16),
        (ModelDtype.BFLOAT16, torch.float16, torch.bfloat16),
        (ModelDtype.FLOAT32, torch.bfloat16, torch.float32),
    ],
)
def test_dtype_asked_for_or_stored(
    asked: ModelDtype, stored: torch.dtype | None, expected: torch.dtype | None
) -> None:
    assert choose_dtype(asked, stored, CPU) == expected


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_a_cpu_runs_half_precision_only_where_it_is_fast(stored: torch.dtype, fast: bool) -> None:
    assert choose_dtype(ModelDtype.AUTO, stored, CPU) == (torch.bfloat16 if fast else torch.float32)
    assert choose_dtype(ModelDtype.AUTO, stored, torch.device("cuda")) == stored


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_float32_runs_in_bfloat16_only_where_the_device_multiplies_it(
    device: str, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **options: fast)
    expected = torch.bfloat16 if fast else torch.float32
    assert choose_dtype(ModelDtype.AUTO, torch.float32, torch.device(device)) == expected


@pytest.mark.parametrize(
    ("has_product", "expected"), [(True, torch.bfloat16), (False, torch.float32)]
)
def test_avx512_without_a_dot_product_of_bfloat16_is_not_fast(
    has_product: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN claims to be able to there, and is several times slower than in float32."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_product)
    assert choose_dtype(ModelDtype.AUTO, torch.bfloat16, CPU) == expected
