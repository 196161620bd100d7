"""The parts that every start of an engine over a checkpoint has: its configuration and place, and
the times of its phases.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from quire.engine.config import EngineConfig, SchedulingConfig
from quire.engine.devices.placement import Placement
from quire.engine.devices.platform import THIS_MACHINE, Platform
from quire.engine.ranks.leader import Leader
from quire.engine.startup.assemble import Clock, OnProgress

DEFAULT_BATCHED_TOKENS = {"cpu": 512, "cuda": 2048}
"""The default token budget of a step, at which matrix products are about as fast as they get."""


@dataclass(slots=True)
class PhaseTimer:
    """Measures the seconds of each phase of the start; `last_s` is when the last one ended."""

    clock: Clock
    seconds: dict[str, float] = field(default_factory=dict)
    last_s: float = 0.0

    def end(self, phase: str) -> None:
        """Record that `phase` ends now and the next one begins."""
        now = self.clock()
        self.seconds[phase] = now - self.last_s
        self.last_s = now


@dataclass(frozen=True, slots=True)
class Start:
    """The start of an engine over the checkpoint in `folder`; `leader` is the end to the other
    ranks, if there are any, and `platform` has the devices."""

    config: EngineConfig
    folder: Path
    placement: Placement
    timer: PhaseTimer
    on_progress: OnProgress
    leader: Leader | None = None
    platform: Platform = THIS_MACHINE

    @property
    def local_config(self) -> EngineConfig:
        """The configuration with the folder for the model's name."""
        return replace(self.config, model=replace(self.config.model, model=str(self.folder)))


def is_overlapped(config: SchedulingConfig, device: torch.device) -> bool:
    """Return whether steps overlap: as configured, otherwise if the host is idle while the device
    computes."""
    if config.async_scheduling is None:
        return device.type != "cpu"
    return config.async_scheduling
