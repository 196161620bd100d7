"""Ranks in processes of their own, that run functions together."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from quire.models.parallel.group import RankGroup, join_group, open_store, serve_store

TIMEOUT_S = 100.0
JOBS = "tests.models.parallel.jobs"
"""Imported once by a process that forks all ranks: with transformers that takes seconds."""

Result = TypeVar("Result")


class RankProcesses:
    """`size` ranks on the CPU, that wait for jobs."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([JOBS])
        self._store = serve_store(TIMEOUT_S)
        pipes = [context.Pipe() for _ in range(size)]
        self._channels = [near for near, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(rank, size, self._store.port, far), daemon=True)
            for rank, (_, far) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, job: Callable[..., Result], *args: object) -> list[Result]:
        """Return what `job(group, *args)` returns on each rank. Raises RuntimeError if it fails on
        one. Arguments and results are pickled."""
        self.begin(job, *args)
        answers = [self.answer(rank) for rank in range(len(self._channels))]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return [answer for answer in answers if not isinstance(answer, Exception)]

    def begin(self, job: Callable[..., Any], *args: object) -> None:
        """Let every rank begin `job(group, *args)`."""
        for channel in self._channels:
            channel.send((job, args))

    def answer(self, rank: int) -> Any:
        """Return what the job that was begun returns on one rank, or a RuntimeError if it fails."""
        if not self._channels[rank].poll(TIMEOUT_S):
            raise TimeoutError(f"rank {rank} does not answer")
        return self._channels[rank].recv()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, size: int, port: int, channel: Connection) -> None:
    torch.set_num_threads(1)
    group = join_group(
        rank, size, open_store(port, TIMEOUT_S), torch.device("cpu"), timeout_s=TIMEOUT_S
    )
    while True:
        try:
            job, args = channel.recv()
        except EOFError:
            break
        try:
            channel.send(job(group, *args))
        except Exception as error:
            channel.send(RuntimeError(repr(error)))  # some errors cannot be pickled
    leave_group(group)


def leave_group(group: RankGroup) -> None:
    """Close this rank's connections, as the end of its process does."""
    group.process_group.shutdown()


def lone_store() -> HashStore:
    """Return a store of this process, for ranks that are its threads."""
    return HashStore()


def in_threads(size: int, job: Callable[[RankGroup], Result]) -> list[Result]:
    """Return what `job` returns on each of `size` ranks, which are threads of this process."""
    store = lone_store()

    def run(rank: int) -> Result:
        group = join_group(rank, size, store, torch.device("cpu"), timeout_s=TIMEOUT_S)
        try:
            return job(group)
        finally:
            leave_group(group)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))
