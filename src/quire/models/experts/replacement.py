"""Lets grouped products stand in for the modules of experts of a loaded model; triton is imported
only where they do.

On GPUs they read the weights of experts that are hit and of no others, and do not ask which those
are: so that decode steps can be captured (`graphs.py`), in float32 and on any GPU that Triton's
kernels run on.
"""

from collections.abc import Callable

import torch
from torch import nn

from quire.models.layers.module_replacement import ModuleReplacements
from quire.models.triton_device import why_not_device

CLASS_NAME = "Experts"
"""A part of the class name of every module of experts."""


def has_experts(module: nn.Module) -> bool:
    return any(CLASS_NAME in type(part).__name__ for part in module.modules())


def choose_experts(module: nn.Module, device: torch.device, is_right: Callable[[], bool]) -> str:
    """Let grouped products compute the experts of `module` if they run on `device` and `is_right`
    holds then. Return the name of the kernels for the log, with the reason if they are others."""
    why = why_not_device(device)
    if why is None:
        replacements = replace_experts(module)
        if replacements.modules and is_right():
            return "triton"
        why = "the logits differ" if replacements.modules else "it computes none of the modules"
        replacements.undo()
    return f"transformers (not triton: {why})"


def replace_experts(module: nn.Module) -> ModuleReplacements:
    """Replace the forward of each known module, and return the replaced modules."""
    from quire.models.experts.blocks import find_block
    from quire.models.experts.modules import find_forward

    replacements = ModuleReplacements()
    for part in module.modules():
        forward = find_forward(part) or find_block(part)
        if forward is not None:
            replacements.replace(part, forward)
    return replacements
