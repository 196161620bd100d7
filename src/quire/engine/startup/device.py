"""Which device an engine computes on."""

import torch


def choose_device(asked: str) -> torch.device:
    """`auto` is the first GPU if there is one, else the CPU. Raises ValueError for a device that is
    not there."""
    num_gpus = torch.cuda.device_count()
    if asked == "auto":
        asked = "cuda" if num_gpus else "cpu"
    if asked == "cpu":
        return torch.device(asked)
    kind, _, place = asked.partition(":")
    if kind != "cuda" or not (asked == kind or place.isdecimal()):
        raise ValueError(f"--device is {asked!r}: pass auto, cpu, cuda or cuda:N")
    index = int(place or 0)
    if index >= num_gpus:
        raise ValueError(
            f"--device is {asked}, but torch {torch.__version__} finds {num_gpus or 'no'} GPUs "
            "here: pass auto or cpu, or install torch for CUDA"
        )
    return torch.device(kind, index)
