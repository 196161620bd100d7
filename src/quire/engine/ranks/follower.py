"""The process of a rank that follows rank 0: a fork of the engine's process, or
`python -m quire.engine.ranks.follower SOCKET RANK PARENT`.

It makes every call that rank 0 makes of its model on its own part of that model, in the same order,
and lets go of the results: they are the same on all ranks. It ends when its socket closes, or with
the first error, which it tells.
"""

import gc
import logging
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import msgspec
import torch
from torch import Tensor

from quire.engine.channel import Channel, ChannelClosed
from quire.engine.config import EngineConfig, LogLevel, TracingConfig
from quire.engine.devices.placement import choose_placement, prepare_threads_and_device
from quire.engine.devices.platform import THIS_MACHINE, Platform
from quire.engine.failure_kind import EXPECTED, kind_of, start_failure_of
from quire.engine.messages import EngineFailure
from quire.engine.process_setup import (
    FAILED,
    RANK_NAME,
    die_with_parent,
    prepare_process,
    set_process_name,
    set_up_log,
)
from quire.engine.ranks.loading import COLLECTIVE_TIMEOUT_S, load_part
from quire.engine.ranks.messages import (
    AttachModel,
    CaptureGraphs,
    CopyBlocks,
    Forward,
    LoadModel,
    MeasureMemory,
    RankLoaded,
    RankMemory,
    ToFollower,
)
from quire.engine.ranks.step_tensors import num_bytes, unpacked_batch
from quire.models.graphs.graphed_model import GraphedModel
from quire.models.graphs.record import GraphPlan, record_steps
from quire.models.hf import HFModel
from quire.models.loading.loaded_model import LoadedModel
from quire.models.parallel.group import RankGroup, join_group, open_store
from quire.models.parallel.ranks import RankLost

logger = logging.getLogger(__name__)


class Follower:
    """Makes the calls that come through a channel, on one part of a model that it loads first."""

    def __init__(self, channel: Channel, rank: int, platform: Platform) -> None:
        self._channel = channel
        self._rank = rank
        self._platform = platform
        self._group: RankGroup | None = None
        self._loaded: LoadedModel | None = None
        self._model: HFModel | GraphedModel | None = None

    @property
    def has_loaded(self) -> bool:
        """Whether the model is loaded."""
        return self._loaded is not None

    def run(self) -> NoReturn:
        """Follow until the channel closes. Raises ChannelClosed then, and any error of a call."""
        decoder = msgspec.msgpack.Decoder[ToFollower](
            LoadModel | AttachModel | CaptureGraphs | CopyBlocks | Forward | MeasureMemory
        )
        while True:
            for body in self._channel.receive(wait=True):
                self._take(decoder.decode(body))

    def _take(self, message: ToFollower) -> None:
        if isinstance(message, Forward):
            self._forward(message)
        elif isinstance(message, CopyBlocks):
            assert self._model is not None
            self._model.copy_blocks(message.copies, message.new_blocks)
            self._model.take_copy_time()  # rank 0 tells its own
        elif isinstance(message, AttachModel):
            self._attach(message)
        elif isinstance(message, CaptureGraphs):
            self._record(message.plan)
        elif isinstance(message, LoadModel):
            self._load(message.config, message.store_port)
        else:
            assert self._loaded is not None
            self._channel.send(RankMemory(self._platform.measure(self._loaded.device)))

    def _load(self, config: EngineConfig, store_port: int) -> None:
        _set_up_own_log(config.tracing, self._rank)
        placement = choose_placement(config.model, self._rank)
        prepare_threads_and_device(placement.device, config.model)
        self._group = join_group(
            self._rank,
            config.model.tensor_parallel_size,
            open_store(store_port, COLLECTIVE_TIMEOUT_S),
            placement.device,
            COLLECTIVE_TIMEOUT_S,
        )
        loaded = load_part(config.model, placement, lambda *_: None, self._group)
        gc.collect()
        gc.freeze()  # what was loaded stays: no collection need look at it again
        self._loaded = loaded
        layout = loaded.facts.layout(config.kv_options)
        self._channel.send(RankLoaded(str(loaded.device), loaded.weight_bytes, layout))

    def _attach(self, message: AttachModel) -> None:
        assert self._loaded is not None
        self._model = None  # the memory of the last one is free before more is taken
        self._model = self._loaded.attach(
            message.num_blocks,
            message.block_size,
            message.options,
            num_host_blocks=message.num_host_blocks,
            num_states=message.num_states,
            num_host_states=message.num_host_states,
        )

    def _record(self, plan: GraphPlan) -> None:
        assert isinstance(self._model, HFModel) and self._group is not None
        device = self._platform.graph_device(self._group.device, self._group)
        assert device is not None, "rank 0 has one"
        self._model = record_steps(self._model, plan, device, lambda *_: None).model

    def _forward(self, step: Forward) -> None:
        model = self._model
        assert model is not None
        batch = unpacked_batch(step, self._tensors(step))
        if batch.states_indices is None:
            model.forward(batch)
        else:
            model.forward_with_states(batch)

    def _tensors(self, step: Forward) -> Tensor:
        if step.tensors is not None:
            return torch.frombuffer(bytearray(step.tensors), dtype=torch.uint8)
        assert self._loaded is not None and self._group is not None
        device = self._loaded.device
        return self._group.broadcast(torch.empty(num_bytes(step), dtype=torch.uint8, device=device))


def follow(sock: socket.socket, rank: int, platform: Platform = THIS_MACHINE) -> NoReturn:
    """Follow rank 0 as this process, a child of its own, on a device of `platform`, and end the
    process."""
    code = FAILED
    try:
        set_process_name(f"{RANK_NAME}{rank}")
        code = _follow(Channel(sock), rank, platform)
    finally:
        sys.stderr.flush()
        os._exit(code)  # what a fork has of its parent's is the parent's to close


def _follow(channel: Channel, rank: int, platform: Platform) -> int:
    """Return the exit code."""
    follower = Follower(channel, rank, platform)
    try:
        follower.run()
    except ChannelClosed:
        return 0
    except Exception as error:
        if isinstance(error, EXPECTED) and not follower.has_loaded:
            failed = EngineFailure(str(error), start_failure_of(error))
        else:
            failed = EngineFailure(f"{type(error).__name__}: {error}", kind_of(error))
            if isinstance(error, RankLost):
                logger.warning("rank %d ends: %s", rank, error)
            else:
                logger.exception("rank %d ends", rank)
        with suppress(ChannelClosed):
            channel.send(failed)
    return FAILED


def _set_up_own_log(config: TracingConfig, rank: int) -> None:
    """Add the rank's name to log lines; messages common to all ranks are logged by rank 0 only."""
    level = LogLevel.DEBUG if config.log_level is LogLevel.DEBUG else LogLevel.WARNING
    name = f"{config.log_name} rank {rank}"
    set_up_log(replace(config, log_level=level, log_name=name))


def main() -> None:
    """Run the process of a rank. The arguments are the file descriptor of its socket, its number,
    and the id of the process that it ends with, if it does."""
    prepare_process()
    _, fd, rank, *parent_id = sys.argv
    if parent_id:
        die_with_parent(int(parent_id[0]))
    follow(socket.socket(fileno=int(fd)), int(rank))


if __name__ == "__main__":
    main()
