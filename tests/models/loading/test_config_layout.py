"""What a configuration tells before the load is what the probe measures after it."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quire.cache.spec import FULL, AttentionPattern, AttentionType, TokenKV
from quire.models.config import CheckpointError, KVCacheDtype, KVOptions, ModelDtype
from quire.models.layers.model_kernels import ModelKernels
from quire.models.loading.checkpoint import ModelSource
from quire.models.loading.config_layout import layout_from_config
from quire.models.loading.loader import load_model
from quire.models.loading.preview import Preview, look_ahead
from quire.models.loading.weight_files import read_headers, stored_float_bytes, weight_bytes
from quire.models.native.linear.bf16_storage import bind_bf16_storage
from quire.models.native.linear.quantised.w8a8 import W8A8Kernel
from quire.models.target import Target
from tests.instructions import library_of
from tests.long import long_but_for
from tests.models.checkpoints import save_checkpoint
from tests.models.driver import ignore_progress, load
from tests.models.families import SERVED
from tests.models.reference import References
from tests.models.representatives import FAMILIES

CPU = torch.device("cpu")
PLAIN = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
TOKEN_KV = TokenKV(num_kv_heads=2, head_size=8, v_head_size=8, element_bytes=2)
WINDOW = AttentionPattern(AttentionType.SLIDING, 9)
OPTIONS = [KVOptions(dtype, hybrid) for dtype in KVCacheDtype for hybrid in (True, False)]


def preview_of(folder: Path, dtype: str = "float32") -> Preview:
    return look_ahead(folder, Target(ModelDtype(dtype), CPU), trust_remote_code=False)


def packed_preview_of(folder: Path, dtype: str, kernels: ModelKernels | None = None) -> Preview:
    bf16_storage = bind_bf16_storage(library_of("portable"))
    given = ModelKernels((bf16_storage,)) if kernels is None else kernels
    return look_ahead(folder, Target(ModelDtype(dtype), CPU, given), trust_remote_code=False)


@long_but_for(FAMILIES.keys() & SERVED.keys(), "name", SERVED)
def test_the_outline_is_what_the_probe_measures(name: str, references: References) -> None:
    folder = references.checkpoint(name)
    preview, loaded = preview_of(folder), load(folder)
    assert preview.max_model_len == loaded.facts.max_model_len
    assert preview.dtype_bytes == loaded.facts.dtype_bytes
    is_part = "text_config" in SERVED[name].fields
    assert is_part or preview.weight_bytes >= 0.95 * parameter_bytes(loaded.module)
    assert preview.weight_bytes <= loaded.weight_bytes
    assert preview.are_kept
    for options in OPTIONS:
        outlined = preview.layout(options)
        assert outlined in (None, loaded.facts.layout(options))
    if name in TOLD:
        assert preview.layout(KVOptions()) is not None


def parameter_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.parameters())


TOLD = (
    *("llama", "qwen2", "qwen2, windows in the upper layers", "qwen3", "mistral"),
    *("mistral, window", "phi3", "phi3, window", "gpt_neox", "gpt2", "gemma2", "gemma3_text"),
    *("gemma3n_text", "gemma4_text", "gemma4_text, layers that share K and V", "mimo_v2_flash"),
    *("olmo2", "mixtral", "qwen3_moe", "gpt_oss", "llama4_text", "cohere2", "deepseek_v3"),
    *(name for name, family in SERVED.items() if "state" in family.attention),
)


def token_kvs_and_patterns(**fields: object) -> tuple[set[TokenKV], list[AttentionPattern]] | None:
    layout = layout_from_config(SimpleNamespace(**{**PLAIN, **fields}), KVOptions(), dtype_bytes=2)
    if layout is None:
        return None
    by_layer = {layer: group.pattern for group in layout.groups for layer in group.layers}
    return {form.token_kv for form in layout.forms}, [by_layer[layer] for layer in sorted(by_layer)]


@pytest.mark.parametrize(
    ("fields", "token_kv"),
    [
        ({}, TOKEN_KV),
        ({"head_dim": 16}, TokenKV(2, 16, 16, 2)),
        ({"head_dim": None}, TOKEN_KV),
        ({"num_key_value_heads": None}, TokenKV(8, 8, 8, 2)),
        ({"head_dim": 16, "v_head_dim": 8}, TokenKV(2, 16, 8, 2)),
        ({"kv_lora_rank": 32, "qk_rope_head_dim": 4, "v_head_dim": 8}, TokenKV(1, 36, 0, 2)),
    ],
    ids=["as said", "head_dim", "no head_dim", "no kv heads", "other values", "latent"],
)
def test_what_is_not_said_of_heads_is_worked_out(
    fields: dict[str, object], token_kv: TokenKV
) -> None:
    assert token_kvs_and_patterns(**fields) == ({token_kv}, [FULL] * 4)


def test_the_old_names_of_gpt_are_known() -> None:
    config = SimpleNamespace(n_layer=3, n_embd=48, n_head=6)
    layout = layout_from_config(config, KVOptions(), dtype_bytes=4)
    assert layout is not None and layout.forms == ((TokenKV(6, 8, 8, 4), 1),)


@pytest.mark.parametrize(
    ("fields", "patterns"),
    [
        ({"sliding_window": 9}, [WINDOW] * 4),
        ({"sliding_window": None}, [FULL] * 4),
        ({"sliding_window": 9, "use_sliding_window": False}, [FULL] * 4),
        ({"sliding_window": 9, "use_sliding_window": True}, [WINDOW] * 4),
        (
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1},
            [FULL, WINDOW, WINDOW, WINDOW],
        ),
        (
            {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"] * 2},
            [WINDOW, FULL] * 2,
        ),
        (
            {"attention_chunk_size": 5, "layer_types": ["chunked_attention"] * 4},
            [AttentionPattern(AttentionType.CHUNKED, 5)] * 4,
        ),
    ],
    ids=["window", "no window", "off", "on", "upper layers", "listed", "chunked"],
)
def test_what_layers_see_is_listed_or_inferred(
    fields: dict[str, object], patterns: list[AttentionPattern]
) -> None:
    assert token_kvs_and_patterns(**fields) == ({TOKEN_KV}, patterns)


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["linear_attention"] * 4},
        {"layer_types": ["full_attention"]},
        {"num_key_value_heads": [1, 2, 1, 2]},
        {"num_hidden_layers": None},
        {"hidden_size": None},
        {"num_kv_shared_layers": 2},
        {"global_head_dim": 64},
        {"kv_lora_rank": 32},
        {"kv_lora_rank": 32, "qk_rope_head_dim": 4, "sliding_window": 9},
    ],
    ids=lambda fields: ", ".join(fields),
)
def test_what_cannot_be_told_is_not_guessed(fields: dict[str, object]) -> None:
    assert token_kvs_and_patterns(**fields) is None


def test_an_outline_needs_no_torch() -> None:
    modules = "quire.models.loading.config_layout, quire.models.loading.weight_files"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(SERVED["llama"], tmp_path_factory.mktemp("llama"), torch.bfloat16)


def test_weights_are_counted_in_the_dtype_asked(llama: Path) -> None:
    stored = preview_of(llama, "bfloat16")
    wider = preview_of(llama, "float32")
    parameters = load(llama, "float32").module.parameters()
    assert wider.weight_bytes == 2 * stored.weight_bytes == sum(each.nbytes for each in parameters)
    assert (stored.are_kept, wider.are_kept) == (True, False)
    packed = packed_preview_of(llama, "float32")
    assert packed.are_kept and packed.weight_bytes == stored.weight_bytes
    assert packed.dtype_bytes == 4, "of K and V"
    assert stored_float_bytes(read_headers(llama)) == 2


def test_what_is_not_stored_in_bfloat16_is_widened(tmp_path: Path) -> None:
    folder = save_checkpoint(SERVED["llama"], tmp_path, torch.float16)
    assert not packed_preview_of(folder, "float32").are_kept


@pytest.mark.parametrize("quantised", [False, True])
def test_weights_that_are_cut_and_packed_are_counted_as_at_least_what_they_take(
    references: References, kernels: ModelKernels, w8a8_kernel: W8A8Kernel, quantised: bool
) -> None:
    """Of a float32 checkpoint in bfloat16: not as they are stored, nor in two bytes each."""
    chosen = kernels._replace(linears=(w8a8_kernel,)) if quantised else kernels
    folder = references.checkpoint("llama")
    preview = packed_preview_of(folder, "bfloat16", chosen)
    source = ModelSource(str(folder))
    loaded = load_model(
        source, dtype=ModelDtype.BFLOAT16, device=CPU, on_progress=ignore_progress, kernels=chosen
    )
    stored = preview_of(folder, "float32").weight_bytes
    assert preview.weight_bytes == stored // 4 if quantised else stored * 3 // 8
    assert preview.weight_bytes <= loaded.weight_bytes
    assert (preview.are_kept, preview.dtype_bytes) == (False, 2)


def safetensors(header: dict[str, object], **entries: tuple[str, list[int]]) -> bytes:
    """Return a file of zeros: `entries` are the dtype and shape of each tensor."""
    head, end = dict(header), 0
    for name, (dtype, shape) in entries.items():
        start, end = end, end + {"F32": 4, "BF16": 2, "I64": 8}[dtype] * math.prod(shape)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


def test_what_will_not_be_loaded_is_not_counted(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.a": ("BF16", [10, 2]),
        "model.layers.1.a": ("BF16", [1000]),
        "lm_head.weight": ("BF16", [500]),
        "steps": ("I64", [3]),
    }
    written = safetensors({"__metadata__": {"format": "pt"}}, **tensors)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(written)
    (tmp_path / "consolidated.safetensors").write_bytes(safetensors({}, x=("F32", [10**6])))
    index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00002.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read_headers(tmp_path)
    assert weight_bytes(found, dtype_bytes=None, num_layers=1, is_tied=True) == 40 + 24
    assert weight_bytes(found, dtype_bytes=4, num_layers=1, is_tied=True) == 80 + 24
    assert weight_bytes(found, dtype_bytes=4, num_layers=2, is_tied=False) == 80 + 4000 + 2000 + 24


@given(st.binary(max_size=64))
def test_what_is_no_header_is_an_error_of_the_checkpoint(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "model.safetensors").write_bytes(content)
        try:
            assert read_headers(Path(name)) == ()
        except CheckpointError as error:
            assert "model.safetensors cannot be loaded" in str(error)


def test_a_header_is_never_longer_than_its_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="bytes long"):
        read_headers(tmp_path)


def test_a_part_of_a_checkpoint_has_weights_of_unknown_size(llama: Path, tmp_path: Path) -> None:
    """A larger model's text part: how much of the files is loaded cannot be told."""
    for file in llama.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    stated = json.loads((tmp_path / "config.json").read_text())
    whole = {"model_type": "got_ocr2", "text_config": stated, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    preview = preview_of(tmp_path)
    assert (preview.model_type, preview.weight_bytes) == ("llama", 0)
    assert preview.layout(KVOptions()) == preview_of(llama).layout(KVOptions())
