"""The real server with a model that says what a plan has it say, as a process of its own:

    python -m tests.e2e.clients.planned_server PLAN MODEL [the flags of `quire serve`]

Front end, scheduler, cache, engine and weights are those of `quire serve`: prompts are computed and
found in the prefix cache as ever. Each request is only given a grammar that leaves it the planned
tokens, and the log tells after which mark it is answered, and how many of its first tokens an
earlier prompt has too.
"""

import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from quire.engine.config import EngineConfig, SupervisionConfig
from quire.engines.process.engine_starter import EngineStarter
from quire.engines.process.subscriber import EngineSubscriber
from quire.engines.process.supervisor import EngineSupervisor
from quire.engines.process.token_stream import TokenStream
from quire.scheduler.request import NewRequest, ResumedOutput
from quire.server.app.notifier import Notifier
from quire.server.app.serve import run
from quire.server.cli.arguments import build_parser
from quire.server.cli.commands import begin_log, calm_threads
from quire.server.cli.output import print_line
from quire.server.cli.settings import read_config
from quire.server.http.listen import bind, url_of
from quire.server.text.tokenizer import load_tokenizer
from tests.e2e.clients.plan import Plan, read_plan

NUM_EARLIER = 32
"""So many prompts are compared with."""
logger = logging.getLogger(__name__)


def num_shared(prompt: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    pairs = zip(prompt, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(prompt), len(other)))


class PlannedEngine(EngineSupervisor):
    """The engine of a server, whose requests are answered as planned. Requests without an output
    have none to plan."""

    def __init__(
        self,
        config: EngineConfig,
        subscriber: EngineSubscriber,
        supervision: SupervisionConfig,
        starter: EngineStarter,
        plan: Plan,
    ) -> None:
        super().__init__(config, subscriber, supervision, starter)
        self._plan = plan
        self._earlier: deque[Sequence[int]] = deque(maxlen=NUM_EARLIER)

    def submit(self, request: NewRequest, resumed: ResumedOutput | None = None) -> TokenStream:
        if request.stopping.max_tokens == 0:
            return super().submit(request, resumed)
        planned, prompt = self._plan.planned(request), request.prompt_token_ids
        shared = max((num_shared(prompt, each) for each in self._earlier), default=0)
        self._earlier.append(prompt)
        logger.info("planned %s after %r, shares %d", request.id, planned.mark, shared)
        return super().submit(planned.request, resumed)


def main(argv: Sequence[str]) -> int:
    """Serve until a signal. Return the exit code."""
    plan_path, *others = argv
    arguments = vars(build_parser().parse_args(["serve", *others]))
    arguments.pop("command")
    calm_threads(os.environ)
    config = read_config(arguments, os.environ)
    begin_log(config, os.environ)
    plan = read_plan(Path(plan_path), load_tokenizer(config.model.engine.model.model, None))
    listener = bind(config.host, config.port)
    print_line(f"a planned server listens on {url_of(listener, config.scheme)}")
    with closing(EngineStarter(has_standby=False)) as starter:

        def open_engine(engine: EngineConfig, subscriber: EngineSubscriber) -> PlannedEngine:
            return PlannedEngine(engine, subscriber, config.supervision, starter, plan)

        return run(config, listener, open_engine, None, Notifier(None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
