"""Calls of recurrent layers that the kernel of a whole decoder makes: what stays the same from step
to step."""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from quire.models.native.library import Library
from quire.models.recurrent.kernels import DeltaNetWeights, ShortConvWeights
from quire.models.recurrent.native_calls import check_tensor, is_dense

States = tuple[Tensor, ...]


class LayerCall(NamedTuple):
    """A structure of abi.h, and what its addresses are of."""

    call: ctypes.Structure
    kept: tuple[object, ...]


def delta_net_call(library: Library, weights: DeltaNetWeights, states: States) -> LayerCall:
    """Return a `DeltaNetCall` without a step, over the states of its convolution and of its delta
    rule. Raises ValueError for tensors that do not fit."""
    tails, matrices = states
    heads, key_size, value_size = matrices.shape[1:]
    key_heads = weights.num_key_heads
    channels = 2 * key_heads * key_size + heads * value_size
    first = _convolution(library, weights.convolution, None, tails, is_activated=True)
    if first.call.channels != channels:
        raise ValueError(f"{first.call.channels} channels of a convolution, must be {channels}")
    store = _store(library, matrices)
    second = library.struct("DeltaRuleCall")(
        store=ctypes.addressof(store),
        key_heads=key_heads,
        heads=heads,
        key_size=key_size,
        value_size=value_size,
    )
    norm, bias, rates = weights.norm.float(), weights.step_bias.float(), weights.log_rates.float()
    for name, tensor, size in (
        ("norm", norm, value_size),
        ("step_bias", bias, heads),
        ("log_rates", rates, heads),
    ):
        check_tensor(name, tensor, torch.float32, (size,))
    call = library.struct("DeltaNetCall")(
        convolution=ctypes.addressof(first.call),
        rule=ctypes.addressof(second),
        step_bias=bias.data_ptr(),
        log_rates=rates.data_ptr(),
        norm_weight=norm.data_ptr(),
        is_product_rounded=weights.norm.dtype is weights.convolution.dtype,
        beta_scale=weights.beta_scale,
        epsilon=weights.epsilon,
    )
    return LayerCall(call, (first, second, store, norm, bias, rates))


def short_conv_call(library: Library, weights: ShortConvWeights, states: States) -> LayerCall:
    """Return a `ConvolutionCall` without a step, over its only states. Raises ValueError for
    tensors that do not fit."""
    (tails,) = states
    return _convolution(library, weights.weight, weights.bias, tails, is_activated=False)


def _convolution(
    library: Library, weight: Tensor, bias: Tensor | None, tails: Tensor, *, is_activated: bool
) -> LayerCall:
    weight, (channels, width) = weight.contiguous(), weight.shape
    check_tensor("states", tails, torch.float32, (len(tails), channels, width - 1))
    if bias is not None:
        bias = bias.contiguous()
        check_tensor("bias", bias, weight.dtype, (channels,))
    store = _store(library, tails)
    call = library.struct("ConvolutionCall")(
        store=ctypes.addressof(store),
        weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        channels=channels,
        width=width,
        is_activated=is_activated,
    )
    return LayerCall(call, (store, weight, bias))


def _store(library: Library, states: Tensor) -> ctypes.Structure:
    if states.dtype is not torch.float32 or not states.is_cpu or not is_dense(states):
        raise ValueError("states must be float32 on the CPU, and contiguous each")
    return library.struct("StateStore")(states.data_ptr(), len(states), states.stride(0))
