"""Ranks in processes of one machine, by torch.distributed's collectives.

A group is built on a store that is handed in, over loopback, and is no global of the process: torch
knows no default group afterwards.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    TCPStore,
)
from torch.nn.functional import pad

from quire.models.parallel.ranks import RankLost

LOOPBACK = "127.0.0.1"
PREFIX = "quire"


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Implements `Ranks` over a process group."""

    rank: int
    size: int
    device: torch.device
    process_group: ProcessGroup

    def sum(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        if tensor.numel() > 0:
            with _naming_loss(self):
                self.process_group.allreduce([tensor]).wait()
        return tensor

    def gather(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        if tensor.shape[:-1].numel() == 0:
            return tensor.new_empty(*tensor.shape[:-1], sum(sizes))
        part = pad(tensor, (0, max(sizes) - tensor.shape[-1])).contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with _naming_loss(self):
            self.process_group.allgather([parts], [part]).wait()
        return torch.cat([each[..., :size] for each, size in zip(parts, sizes, strict=True)], -1)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Return the `tensor` of rank `source`; that of another rank may be overwritten. Raises
        RankLost."""
        tensor = tensor.contiguous()
        if tensor.numel() > 0:
            with _naming_loss(self):
                self.process_group.broadcast(tensor, source).wait()
        return tensor

    def all_agree(self, holds: bool) -> bool:
        """Return whether `holds` is true on every rank. Raises RankLost."""
        num_agreed = torch.tensor([int(holds)], device=self.device)
        return int(self.sum(num_agreed)) == self.size


def serve_store(timeout_s: float) -> TCPStore:
    """Return a store on a free port of loopback, for the other ranks to open."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        return TCPStore(
            LOOPBACK,
            port,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def open_store(port: int, timeout_s: float) -> TCPStore:
    """Return the store that another process serves at `port`."""
    timeout = timedelta(seconds=timeout_s)
    return TCPStore(LOOPBACK, port, is_master=False, timeout=timeout, wait_for_workers=False)


def join_group(
    rank: int, size: int, store: Store, device: torch.device, timeout_s: float
) -> RankGroup:
    """Return the group of `size` ranks that meet at `store`, once all of them are there: gloo among
    CPUs, NCCL among GPUs.

    `timeout_s` is what this call and each collective wait for the others. Raises RankLost.
    """
    store = PrefixStore(PREFIX, store)
    process_group = ProcessGroup(store, rank, size)
    group = RankGroup(rank, size, device, process_group)
    with _naming_loss(group):
        if device.type == "cuda":
            _add_nccl(process_group, store, device, timeout_s)
        else:
            _add_gloo(process_group, store, timeout_s)
        if not group.all_agree(True):
            raise RankLost(f"rank {rank} of {size}: the ranks do not count as one")
    return group


def _add_gloo(process_group: ProcessGroup, store: Store, timeout_s: float) -> None:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=timeout_s)
    backend = ProcessGroupGloo(store, process_group.rank(), process_group.size(), options)
    kind = ProcessGroup.BackendType.GLOO
    process_group._set_default_backend(kind)
    process_group._register_backend(torch.device("cpu"), kind, backend)


def _add_nccl(
    process_group: ProcessGroup, store: Store, device: torch.device, timeout_s: float
) -> None:
    from torch._C._distributed_c10d import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout_s)
    backend = ProcessGroupNCCL(store, process_group.rank(), process_group.size(), options)
    kind = ProcessGroup.BackendType.NCCL
    process_group._set_default_backend(kind)
    process_group._register_backend(device, kind, backend)


@contextmanager
def _naming_loss(group: RankGroup) -> Iterator[None]:
    """Convert errors of torch's collectives to RankLost."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"rank {group.rank} of {group.size}: {error}") from error
