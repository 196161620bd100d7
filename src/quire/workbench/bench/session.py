"""Runs the rounds: each server gets the same prompts, one after the other, fresh ones every
round."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quire.workbench.bench.figures import LoadFigures, figures_of
from quire.workbench.bench.load import ClosedLoopLoad
from quire.workbench.bench.probe import Server
from quire.workbench.bench.prompts import Prompt, PromptGenerator
from quire.workbench.bench.ratios import WorkloadRun
from quire.workbench.bench.server_client import BenchError
from quire.workbench.bench.workloads import Workload

LOAD_TIMEOUT_S = 3600.0
SPARE_SHARE = 0.1
"""The share of the context that stays free where prompts are words: their tokens are only
estimated."""


@dataclass(frozen=True, slots=True)
class Session:
    """Servers that answer, and the workloads to run on them.

    on_load: called with the name of each load that begins.
    on_request: called as each request that counts ends.
    """

    servers: tuple[Server, ...]
    workloads: tuple[Workload, ...]
    prompts: PromptGenerator
    seed: int
    on_load: Callable[[str], object]
    on_request: Callable[[], object]

    def warm_up(self) -> None:
        """Run each workload once on each server, with few tokens, so that no round pays for lazy
        set-up.

        Raises BenchError on a request that fails.
        """
        for workload in (each.warm_up() for each in self.workloads):
            prompts = self.prompts.generate(workload, self.seed - 1)
            for server in self.servers:
                self.on_load(f"warm-up, {workload.name}, {server.label}")
                figures = self._load(server, workload, prompts, on_end=lambda: None)
                if figures.first_failure is not None:
                    where = f"{server.client.address.url}, {workload.name}"
                    raise BenchError(f"{where}: {figures.first_failure}")

    def rounds(self, num_repeats: int) -> Iterator[WorkloadRun]:
        """Yield the runs of all rounds: A B in even rounds and B A in odd ones, workload by
        workload."""
        for round_index in range(num_repeats):
            for workload in self.workloads:
                prompts = self.prompts.generate(workload, self.seed + round_index)
                for server in self.servers[:: -1 if round_index % 2 else 1]:
                    self.on_load(f"round {round_index + 1}, {workload.name}, {server.label}")
                    figures = self._load(server, workload, prompts, on_end=self.on_request)
                    yield WorkloadRun(workload.name, server.label, round_index, figures)

    def _load(
        self,
        server: Server,
        workload: Workload,
        prompts: list[Prompt],
        on_end: Callable[[], object],
    ) -> LoadFigures:
        dialect = server.dialect
        bodies = [dialect.body(server.model, p, workload.num_output_tokens) for p in prompts]
        requests = [server.client.request(dialect.path, body) for body in bodies]
        address = server.client.address
        loop = ClosedLoopLoad(address, workload.concurrency, LOAD_TIMEOUT_S, on_end)
        return figures_of(workload, loop.run(requests))


def fit(workload: Workload, max_model_len: int | None, *, is_exact: bool) -> Workload:
    """Return the workload with prompts short enough for the context. Raises BenchError where no
    prompt fits."""
    if max_model_len is None:
        return workload
    max_prompt_tokens = max_model_len - workload.num_output_tokens
    if not is_exact:
        max_prompt_tokens -= int(max_prompt_tokens * SPARE_SHARE)
    if max_prompt_tokens < 1:
        wanted = f"{workload.num_output_tokens} output tokens"
        raise BenchError(f"{workload.name}: {wanted} do not fit into a context of {max_model_len}")
    return (
        workload
        if workload.num_prompt_tokens <= max_prompt_tokens
        else workload.with_prompt(max_prompt_tokens)
    )
