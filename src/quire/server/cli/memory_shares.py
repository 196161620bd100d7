"""Shares the memory of a device out among the models of a server.

Each share is said, or is an equal part of what the others leave of the default. It is a share of
the whole device (on a CPU of half of what is free), whatever the other models use of theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quire.cache.sizing import BY_SHARE, DEFAULT_SHARE
from quire.engine.config import EngineConfig
from quire.server.config import InvalidOption

ANY_DEVICE = "auto"
TOLERANCE = 1e-9


def with_shares(engines: Mapping[str, EngineConfig]) -> dict[str, EngineConfig]:
    """Return the engines, by the names of their models, each with its share. Raises InvalidOption
    where there is less than is asked for."""
    if len(engines) == 1:
        return dict(engines)
    shares: dict[str, float] = {}
    for device in sorted({_device(each) for each in engines.values()}):
        on_device = {
            name: each for name, each in engines.items() if _device(each) in (device, ANY_DEVICE)
        }
        for name, share in _shares(device, on_device).items():
            shares[name] = min(share, shares.get(name, 1.0))
    return {name: _with_share(each, shares.get(name)) for name, each in engines.items()}


def _device(engine: EngineConfig) -> str:
    return "cuda:0" if engine.model.device == "cuda" else engine.model.device


def _shares(device: str, engines: Mapping[str, EngineConfig]) -> dict[str, float]:
    """Return the shares of those whose memory is not said in bytes, tokens or blocks."""
    said = {
        name: each.memory.gpu_memory_utilization
        for name, each in engines.items()
        if each.memory.gpu_memory_utilization is not None
    }
    open_names = [
        name
        for name, each in engines.items()
        if name not in said and not each.memory.budget.is_explicit
    ]
    total = sum(said.values())
    if total > 1 + TOLERANCE:
        raise InvalidOption(
            f"{BY_SHARE} of {_listed(list(said))} are {total:g} of device {device} together, more "
            "than all of it"
        )
    left = DEFAULT_SHARE - total
    if open_names and left <= TOLERANCE:
        raise InvalidOption(
            f"the other models leave {_listed(open_names)} no memory of device {device}: give each "
            f"a share by {BY_SHARE}"
        )
    return said | {name: round(left / len(open_names), 6) for name in open_names}


def _with_share(engine: EngineConfig, share: float | None) -> EngineConfig:
    memory = replace(engine.memory, is_device_shared=True)
    if share is not None:
        memory = replace(memory, gpu_memory_utilization=share)
    return replace(engine, memory=memory)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
