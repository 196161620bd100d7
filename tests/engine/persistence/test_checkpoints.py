"""Engines over real layers in float32: their texts with blocks from disk are those without."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quire.engine.config import EngineConfig, MemoryConfig, ModelConfig, SchedulingConfig
from quire.engine.engine import Engine
from quire.engine.startup.build import build_engine
from quire.models.config import KVCacheDtype, ModelDtype
from quire.scheduler.step import Finish
from tests.engine.persistence.disk_world import PATIENCE_S, ask, eventually
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED

PROMPT = tuple(number * 11 % 50 for number in range(70))
NUM_BYTES = 1 << 28
CASES = {
    "full": ("llama", KVCacheDtype.AUTO),
    "window": ("mistral, window", KVCacheDtype.AUTO),
    "hybrid": ("gemma3_text", KVCacheDtype.AUTO),
    "latent": ("deepseek_v2", KVCacheDtype.AUTO),
    "int8": ("llama", KVCacheDtype.INT8),
    "states": ("qwen3_5_text", KVCacheDtype.AUTO),
    "states alone": ("mamba", KVCacheDtype.AUTO),
}


def config_of(
    checkpoint: Path, kept_as: KVCacheDtype = KVCacheDtype.AUTO, *, has_attention: bool = True
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(str(checkpoint), device="cpu", dtype=ModelDtype.FLOAT32),
        MemoryConfig(
            block_size=8, kv_cache_tokens=300 if has_attention else None, kv_cache_dtype=kept_as
        ),
        SchedulingConfig(max_num_seqs=4, max_model_len=128),
    )


def on_disk(config: EngineConfig, folder: Path) -> EngineConfig:
    memory = replace(config.memory, prefix_cache_dir=str(folder), prefix_cache_bytes=NUM_BYTES)
    return replace(config, memory=memory)


@contextmanager
def engine_of(config: EngineConfig) -> Iterator[Engine]:
    engine, _ = build_engine(config, on_progress=lambda *step: None, clock=time.monotonic)
    try:
        yield engine
    finally:
        engine.close()


def answer(engine: Engine, name: str) -> tuple[tuple[int, ...], Finish]:
    """The tokens of one request, and its account."""
    assert engine.submit(ask(name, PROMPT, num_outputs=20)) is None
    deltas = []
    end_s = time.monotonic() + PATIENCE_S
    while engine.has_work:
        assert time.monotonic() < end_s
        deltas += engine.step().deltas
    finish = deltas[-1].finish
    assert finish is not None
    return tuple(token for delta in deltas for token in delta.token_ids), finish


@pytest.mark.parametrize(("family", "kept_as"), CASES.values(), ids=CASES)
def test_a_text_is_the_same_with_blocks_from_disk(
    tmp_path: Path, family: str, kept_as: KVCacheDtype
) -> None:
    checkpoint = save_checkpoint(SERVED[family], tmp_path / "model")
    config = config_of(checkpoint, kept_as, has_attention=SERVED[family].attention != "state")
    with engine_of(config) as engine:
        expected, _ = answer(engine, "a")
    folder = tmp_path / "kv"
    with engine_of(on_disk(config, folder)) as engine:
        assert answer(engine, "a")[0] == expected
    with engine_of(on_disk(config, folder)) as engine:
        text, finish = answer(engine, "a")
        assert text == expected
        assert finish.num_cached_tokens == 64
        stats = engine.disk_stats
        assert stats is not None and stats.num_loaded_tokens == 64


def test_other_weights_or_another_form_of_kv_find_nothing(tmp_path: Path) -> None:
    """The fine-tune has the names, shapes and sizes of the model."""
    folder = tmp_path / "kv"
    checkpoint = save_checkpoint(SERVED["llama"], tmp_path / "model")
    config = config_of(checkpoint)
    with engine_of(on_disk(config, folder)) as engine:
        answer(engine, "a")
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-2] ^= 0x10
    others = {
        "int8": config_of(checkpoint, KVCacheDtype.INT8),
        "block size": replace(config, memory=replace(config.memory, block_size=16)),
        "dtype": replace(config, model=replace(config.model, dtype=ModelDtype.BFLOAT16)),
    }
    for other in others.values():
        with engine_of(on_disk(other, folder)) as engine:
            assert answer(engine, "a")[1].num_cached_tokens == 0
    weights.write_bytes(content)
    with engine_of(on_disk(config, folder)) as engine:
        assert answer(engine, "a")[1].num_cached_tokens == 0
    eventually(lambda: len([path for path in folder.iterdir() if path.is_dir()]) == 5)


def test_the_digest_of_weights_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    config = on_disk(config_of(save_checkpoint(SERVED["llama"], tmp_path / "model")), folder)
    with engine_of(config):
        pass
    (memo,) = folder.glob(".weights-*.json")
    known = memo.read_text(encoding="utf-8")
    with engine_of(config):
        pass
    assert memo.read_text(encoding="utf-8") == known
    memo.write_text("[torn", encoding="utf-8")
    with engine_of(config):
        pass
    assert memo.read_text(encoding="utf-8") == known


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """Before a model is loaded, but for what only the model tells."""
    config = config_of(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    memory = config.memory
    for given, message in {
        replace(memory, prefix_cache_dir="x"): "both or neither",
        replace(memory, prefix_cache_bytes=1): "both or neither",
        replace(
            memory,
            prefix_cache_dir="x",
            prefix_cache_bytes=1,
            enable_prefix_caching=False,
        ): "--no-enable-prefix-caching",
        replace(
            memory, prefix_cache_dir=str(file / "below"), prefix_cache_bytes=1
        ): "--prefix-cache-dir is .* which cannot be used: Not a directory",
    }.items():
        with pytest.raises(ValueError, match=message), engine_of(replace(config, memory=given)):
            pass
    checkpoint = save_checkpoint(SERVED["llama"], tmp_path / "model")
    small = on_disk(config_of(checkpoint), tmp_path / "kv")
    small = replace(small, memory=replace(small.memory, prefix_cache_bytes=1000))
    with pytest.raises(ValueError, match="--prefix-cache-bytes is 1000"), engine_of(small):
        pass
    checkpoint = save_checkpoint(SERVED["mamba"], tmp_path / "mamba")
    small = on_disk(config_of(checkpoint, has_attention=False), tmp_path / "kv")
    small = replace(small, memory=replace(small.memory, prefix_cache_bytes=1000))
    with pytest.raises(ValueError, match="but a recurrent state of this"), engine_of(small):
        pass
