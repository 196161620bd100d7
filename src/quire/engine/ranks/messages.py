"""The messages between rank 0 of an engine and each other rank: frozen structs in MessagePack,
framed by their lengths (`engine/channel.py`).

Rank 0 sends every call of its model, in order, and is not answered: an error comes as Failed. What
it waits for are Loaded and Measured.
"""

from typing import TypeAlias

import msgspec

from quire.cache.block_copies import BlockCopy
from quire.cache.layout import Layout
from quire.engine.config import EngineConfig
from quire.engine.devices.memory import DeviceMemory
from quire.engine.messages import EngineFailure
from quire.models.config import KVOptions
from quire.models.graphs.record import GraphPlan


class LoadModel(msgspec.Struct, frozen=True, tag="load", array_like=True):
    """Rank 0 to another: join the group whose store listens at `store_port`, and load the model
    that `config` names, a folder by now."""

    config: EngineConfig
    store_port: int


class AttachModel(msgspec.Struct, frozen=True, tag="attach", array_like=True):
    """Rank 0 to another: allocate K, V and states for a model that takes the place of the last
    one."""

    num_blocks: int
    block_size: int
    options: KVOptions
    num_host_blocks: int
    num_states: int
    num_host_states: int


class CaptureGraphs(msgspec.Struct, frozen=True, tag="record", array_like=True):
    """Rank 0 to another: capture the model's steps as CUDA graphs, together with it."""

    plan: GraphPlan


class CopyBlocks(msgspec.Struct, frozen=True, tag="copy", array_like=True):
    """Rank 0 to another: start the block copies of a step."""

    copies: tuple[BlockCopy, ...]
    new_blocks: tuple[int, ...]


class Forward(msgspec.Struct, frozen=True, tag="forward", array_like=True):
    """Rank 0 to another: compute a step.

    num_tables, table_width: the block tables are [num_tables, chunks, table_width].
    num_logits: the number of logits indices; num_states that of states indices, None for none.
    num_pieces: the number of pieces that recurrent layers carry their states over; None without
        such layers.
    tensors: the step's tensors as int64 in the order of `step_tensors.py`; None where rank 0
        broadcasts them from device to device.
    """

    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    num_tables: int
    table_width: int
    num_logits: int
    num_states: int | None
    num_pieces: int | None
    tensors: bytes | None


class MeasureMemory(msgspec.Struct, frozen=True, tag="measure", array_like=True):
    """Rank 0 to another: report the memory of the device."""


class RankLoaded(msgspec.Struct, frozen=True, tag="loaded", array_like=True):
    """Another rank to rank 0: the model is loaded on `device`; `layout` is that of this rank's keys
    and values."""

    device: str
    weight_bytes: int
    layout: Layout


class RankMemory(msgspec.Struct, frozen=True, tag="measured", array_like=True):
    """Another rank to rank 0: the memory of its device."""

    memory: DeviceMemory


ToFollower: TypeAlias = (
    LoadModel | AttachModel | CaptureGraphs | CopyBlocks | Forward | MeasureMemory
)
FromFollower: TypeAlias = RankLoaded | RankMemory | EngineFailure
