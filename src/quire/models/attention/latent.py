"""Multi-head latent attention that stores nothing but the latent: arXiv 2405.04434, section 2.1.

transformers compresses each token to a latent c and a shared rotary key r, then expands c to every
head's keys and values by `kv_b_proj`, W_uk over W_uv. That product moves to the other operand:

    query . (W_uk c) = (W_uk^T query) . c        sum a_i (W_uv c_i) = W_uv (sum a_i c_i)

so that all heads attend to one vector [c ; r], whose first part is their value too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.models.attention.hook import AttentionHook
from quire.models.config import UnsupportedModel

EXPAND = "expand_kv"
"""The method of a transformers module that expands; its callers stay as they are."""


@dataclass(frozen=True, slots=True)
class LatentHook:
    """Attends over latents by `inner`, between the two halves of `kv_b_proj`.

    key_up, value_up: [heads, nope, rank] and [heads, v_head_size, rank], views of the one weight.
    """

    inner: AttentionHook
    key_up: Tensor
    value_up: Tensor

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, extras: Mapping[str, object]
    ) -> Tensor:
        nope = self.key_up.shape[1]
        plain, rotated = query[0, ..., :nope], query[0, ..., nope:]
        absorbed = torch.cat((plain @ self.key_up, rotated), dim=-1)
        latents = self.inner.attend(absorbed[None], key, value, extras)
        values = latents[0].transpose(0, 1) @ self.value_up.transpose(1, 2)
        return values.transpose(0, 1)[None]


def is_latent(attention: nn.Module) -> bool:
    """Return whether the module is multi-head latent attention."""
    return getattr(attention, "kv_lora_rank", None) is not None and hasattr(attention, "kv_b_proj")


def keep_latent(attention: nn.Module, model_type: str) -> None:
    """Let the module pass its latent to attention unexpanded. Raises UnsupportedModel."""
    if not callable(getattr(attention, EXPAND, None)):
        raise UnsupportedModel(model_type, "their latent attention cannot be kept latent")
    if attention.get_submodule("kv_b_proj").bias is not None:
        raise UnsupportedModel(model_type, "their latent attention adds a bias to keys and values")
    setattr(attention, EXPAND, _as_it_is)


def latent_hook(attention: nn.Module, inner: AttentionHook) -> LatentHook:
    """Wrap `inner` for the module, whose weights must not be replaced later: views are kept."""
    nope, v_head_size = (_int(attention, name) for name in ("qk_nope_head_dim", "v_head_dim"))
    weight = attention.get_parameter("kv_b_proj.weight")
    by_head = weight.view(-1, nope + v_head_size, weight.shape[1])
    return LatentHook(inner, by_head[:, :nope], by_head[:, nope:])


def _int(attention: nn.Module, name: str) -> int:
    value: object = getattr(attention, name)
    assert isinstance(value, int)
    return value


def _as_it_is(latent: Tensor, rotary_key: Tensor) -> tuple[Tensor, Tensor]:
    kept = torch.cat((latent, rotary_key), dim=-1)
    return kept, kept[..., : latent.shape[-1]]
