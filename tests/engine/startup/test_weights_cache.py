"""`--weights-cache-dir`: a start finds what an earlier one of the same model and options packed."""

import re
import time
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from safetensors.torch import load_file, save_file

from quire.engine.config import TOY_MODEL, EngineConfig
from quire.engine.startup.build import build_engine
from quire.engine.startup.fingerprint import checkpoint_digests
from quire.models.config import LinearBackend, Quantization
from quire.models.optimizations import Optimization
from tests.engine.persistence.test_checkpoints import answer, config_of, engine_of
from tests.instructions import built_library
from tests.models.checkpoints import save_checkpoint
from tests.models.families import SERVED
from tests.models.loading.gguf.test_models import locate_file
from tests.models.loading.gguf.test_packed import save_model
from tests.models.loading.gguf.writer import write_model


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    built_library()
    found = config_of(save_checkpoint(SERVED["llama"], tmp_path / "model"))
    model = replace(
        found.model, quantization=Quantization.INT8, weights_cache_dir=str(tmp_path / "kept")
    )
    return replace(found, model=model)


def kept(config: EngineConfig) -> set[str]:
    assert config.model.weights_cache_dir is not None
    return {path.name for path in Path(config.model.weights_cache_dir).glob("*.safetensors")}


def text_of(config: EngineConfig) -> tuple[int, ...]:
    with engine_of(config) as engine:
        return answer(engine, "a")[0]


def test_a_second_start_says_the_same_over_kept_weights(config: EngineConfig) -> None:
    expected = text_of(replace(config, model=replace(config.model, weights_cache_dir=None)))
    assert text_of(config) == expected
    (name,) = kept(config)
    assert text_of(config) == expected
    assert kept(config) == {name}


def test_other_weights_and_options_have_files_of_their_own(config: EngineConfig) -> None:
    """A fine-tune differs by nothing but its numbers."""
    text_of(config)
    changed = [
        replace(config.model, quantization=Quantization.INT4),
        replace(config.model, disable_optimizations=(Optimization.AVX512,)),
    ]
    for number, model in enumerate(changed, 2):
        text_of(replace(config, model=model))
        assert len(kept(config)) == number
    (file,) = Path(config.model.model).glob("*.safetensors")
    weights = load_file(file)
    save_file({**weights, "lm_head.weight": weights["lm_head.weight"] * 2}, file, {"format": "pt"})
    text_of(config)
    assert len(kept(config)) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_backend": LinearBackend.TORCH}, "there are none here"),
        ({"model": TOY_MODEL}, "has no weights"),
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size is 2, which does not go with"),
        ({"weights_cache_dir": "/dev/null/folder"}, "cannot be used: Not a directory"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    changes: dict[str, object], message: str, config: EngineConfig
) -> None:
    plain = replace(config.model, quantization=Quantization.NONE)
    wrong = replace(plain, **changes)  # type: ignore[arg-type]
    found = f"--weights-cache-dir.*{re.escape(message)}|{re.escape(message)}.*--weights-cache-dir"
    with pytest.raises(ValueError, match=found):
        build_engine(
            replace(config, model=wrong), on_progress=lambda *_: None, clock=time.monotonic
        )


def test_gguf_files_of_one_model_are_told_apart(tmp_path: Path) -> None:
    """By what their weights are, since their configurations are equal: blocks of K and V of the one
    must not be the other's either."""
    whole = save_model(tmp_path / "whole", is_tied=True)
    digests = []
    for name in ("Q4_0", "Q8_0"):
        file = tmp_path / f"{name}.gguf"
        write_model(whole, file, "llama", kind={"": gguf.GGMLQuantizationType[name]})
        digests.append(checkpoint_digests(locate_file(file), tmp_path))
    assert digests[0]["config.json"] == digests[1]["config.json"]
    assert digests[0] != digests[1]
