"""Chooses the device that an engine computes on."""

import torch


def choose_device(name: str) -> torch.device:
    """Return the device of a name; `auto` is the first GPU if there is one, else the CPU. Raises
    ValueError for a device that does not exist."""
    num_gpus = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if num_gpus else "cpu"
    if name == "cpu":
        return torch.device(name)
    kind, _, number = name.partition(":")
    if kind != "cuda" or not (name == kind or number.isdecimal()):
        raise ValueError(f"--device is {name!r}: pass auto, cpu, cuda or cuda:N")
    index = int(number or 0)
    if index >= num_gpus:
        raise ValueError(
            f"--device is {name}, but torch {torch.__version__} finds {num_gpus or 'no'} GPUs "
            "here: pass auto or cpu, or install torch for CUDA"
        )
    return torch.device(kind, index)
