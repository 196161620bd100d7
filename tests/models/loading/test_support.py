"""The context length that a configuration means, RoPE scaling counted."""

from types import SimpleNamespace

import pytest

from quire.models.config import UnsupportedModel
from quire.models.loading.support import (
    UNLIMITED_LEN,
    layering,
    max_model_len,
    refuse_unsupported,
)
from quire.models.recurrent.config_states import states_from_config


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (None, 4096),
        ({"rope_type": "default"}, 4096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "longrope", "original_max_position_embeddings": 1024}, 1024),
        (
            {
                "full_attention": {
                    "rope_type": "longrope",
                    "original_max_position_embeddings": 1024,
                },
                "sliding_attention": {"rope_type": "default"},
            },
            1024,
        ),
        ({"full_attention": {"rope_type": "linear", "factor": 8.0}}, 4096),
    ],
)
def test_rope_scaling_lengthens_the_context(rope: object, expected: int) -> None:
    config = SimpleNamespace(max_position_embeddings=4096, rope_parameters=rope)
    assert max_model_len(config) == expected


@pytest.mark.parametrize("kind", [None, "sliding_attention"])
def test_dynamic_rope_is_refused_in_any_kind_of_layer(kind: str | None) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    rope = dynamic if kind is None else {"full_attention": {"rope_type": "default"}, kind: dynamic}
    config = SimpleNamespace(max_position_embeddings=4096, rope_parameters=rope)
    with pytest.raises(UnsupportedModel, match="dynamic RoPE"):
        refuse_unsupported(config)


def test_a_configuration_without_a_length_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="no context length"):
        max_model_len(SimpleNamespace(model_type="endless"))


@pytest.mark.parametrize("kinds", [["linear_attention"], ["linear_attention", "full_attention"]])
def test_only_models_without_attention_need_no_length(kinds: list[str]) -> None:
    config = SimpleNamespace(model_type="mamba2", num_hidden_layers=len(kinds), layer_types=kinds)
    if "full_attention" not in kinds:
        assert max_model_len(config) == UNLIMITED_LEN
        return
    with pytest.raises(UnsupportedModel, match="no context length"):
        max_model_len(config)


@pytest.mark.parametrize("value", [None, 0, "auto"])
def test_a_size_of_a_state_that_is_no_size_is_refused_by_its_field(value: object) -> None:
    config = SimpleNamespace(
        model_type="bamba", layer_types=["linear_attention"], mamba_n_heads=value
    )
    with pytest.raises(UnsupportedModel, match=f"mamba_n_heads .* is {value!r}, must be an"):
        states_from_config(config)


def test_windows_that_each_layer_states_are_left_to_what_attention_is_told() -> None:
    class Differing:
        """As transformers has it: one value for all layers is refused."""

        num_hidden_layers = 2
        per_layer_attributes = frozenset({"sliding_window"})

        @property
        def sliding_window(self) -> int:
            raise RuntimeError("may vary across layers")

    assert layering(Differing()).window_size is None
