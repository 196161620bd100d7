"""A loaded model, whole or in parts: one rank that has all of it, or rank 0 with the others."""

from dataclasses import dataclass

import torch

from quire.engine.devices.memory import DeviceMemory, Memories, measure
from quire.engine.devices.platform import Platform
from quire.engine.messages import RankFacts
from quire.engine.ranks.leader import Leader
from quire.engine.ranks.leading_model import LeadingModel
from quire.engine.ranks.messages import AttachModel, MeasureMemory, RankLoaded, RankMemory
from quire.models.config import KVOptions
from quire.models.graphs.capture import GraphDevice
from quire.models.hf import HFModel
from quire.models.loading.loaded_model import LoadedModel
from quire.models.parallel.group import RankGroup


@dataclass(frozen=True, slots=True)
class OtherRanks:
    """The following ranks; `loaded` has the facts of each."""

    leader: Leader
    group: RankGroup
    loaded: tuple[RankLoaded, ...]


@dataclass(frozen=True, slots=True)
class LoadedRanks:
    """A loaded model: `local` is the part that this rank has, all of it where there are no
    others; `graph_device` captures the launches of its device, if there are any to capture."""

    local: LoadedModel
    platform: Platform
    graph_device: GraphDevice | None
    others: OtherRanks | None = None

    @property
    def num_ranks(self) -> int:
        return 1 if self.others is None else self.others.leader.num_ranks

    def attach(
        self,
        num_blocks: int,
        block_size: int,
        options: KVOptions,
        *,
        num_host_blocks: int = 0,
        num_states: int = 0,
        num_host_states: int = 0,
    ) -> HFModel | LeadingModel:
        """Allocate K, V and states on all ranks, and return a model that works on them."""

        def attach() -> HFModel:
            return self.local.attach(
                num_blocks,
                block_size,
                options,
                num_host_blocks=num_host_blocks,
                num_states=num_states,
                num_host_states=num_host_states,
            )

        others = self.others
        if others is None:
            return attach()
        with others.leader.together():
            others.leader.tell(
                AttachModel(
                    num_blocks, block_size, options, num_host_blocks, num_states, num_host_states
                )
            )
            model = attach()
        return LeadingModel(model, others.leader, others.group)

    def memories(self) -> Memories:
        """Return the device and host memory of each rank."""
        device, num_ranks = self.local.device, self.num_ranks
        memory, host = self.platform.measure(device), measure(torch.device("cpu")).share(num_ranks)
        if memory.is_host:
            return Memories((host,) * num_ranks, host)
        return Memories((memory, *self._measured()), host)

    def _measured(self) -> list[DeviceMemory]:
        """Return the memory of the other ranks' devices."""
        if self.others is None:
            return []
        self.others.leader.tell(MeasureMemory())
        return [each.memory for each in self.others.leader.answers(RankMemory)]

    def facts(self, kv_bytes: int, state_bytes: int) -> tuple[RankFacts, ...]:
        """Return the facts of each rank, of which each has so many bytes of blocks and of states;
        empty for a single rank."""
        if self.others is None:
            return ()
        held = [(str(self.local.device), self.local.weight_bytes)]
        held += [(each.device, each.weight_bytes) for each in self.others.loaded]
        return tuple(
            RankFacts(device, weight_bytes, kv_bytes, state_bytes) for device, weight_bytes in held
        )
