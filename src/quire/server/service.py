"""The service is what all handlers share: the configuration, the engine, the tokenizer, and whether
the server may take work now.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from quire.engine.client import Phase
from quire.engine.messages import EngineFacts, EngineOutput
from quire.process_age import process_age_s
from quire.scheduler.policy import PolicyName
from quire.server.config import AUTO, NO_PARSER, GenerationConfig, ServerConfig
from quire.server.engine_protocol import EngineProtocol
from quire.server.errors import EngineGone, ModelLoading, ShuttingDown
from quire.server.grammars.check import prepare_check
from quire.server.http.bodies import BodyReader
from quire.server.http.loop_throttle import LoopThrottle
from quire.server.observability.kv_event_feed import KVEventFeed
from quire.server.observability.metrics import ServerMetrics
from quire.server.observability.request_spans import RequestSpans
from quire.server.observability.timelines import Timelines
from quire.server.parsers.formats import (
    ReasoningFormat,
    ReasoningFormatName,
    ToolFormat,
    ToolFormatName,
    find_reasoning_format,
    find_tool_format,
)
from quire.server.requests.input_context import InputContext, InputLimits
from quire.server.requests.input_reader import InputReader
from quire.server.requests.sampling_defaults import SamplingDefaults, load_sampling_defaults
from quire.server.requests.structured_outputs import vocabulary_of
from quire.server.tenancy.shared_prefixes import (
    SharedPrefixError,
    SharedPrefixes,
    load_shared_prefixes,
)
from quire.server.tenancy.tenants import Tenants
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from quire.server.text.tokenizer_files import TokenizerError

logger = logging.getLogger(__name__)

POLL_S = 0.05
WAITING_BODIES = 8
"""So many of the largest bodies may wait in each size class."""


class OutputFormats(NamedTuple):
    """The formats in which the model writes tool calls and reasoning; None if not known."""

    tools: ToolFormat | None
    reasoning: ReasoningFormat | None


def output_formats(config: ServerConfig, template: str) -> OutputFormats:
    """Return the formats that the configuration names, or that the chat template shows."""
    tools, reasoning = config.tool_call_parser, config.reasoning_parser
    return OutputFormats(
        find_tool_format(template)
        if tools == AUTO
        else None
        if tools == NO_PARSER
        else ToolFormatName[tools].value,
        find_reasoning_format(template)
        if reasoning == AUTO
        else None
        if reasoning == NO_PARSER
        else ReasoningFormatName[reasoning].value,
    )


class Sources(NamedTuple):
    """Sources of time and randomness, which come in as arguments.

    clock: seconds, which only grow. now: seconds since 1970.
    """

    clock: Callable[[], float]
    now: Callable[[], float]
    random_bytes: Callable[[int], bytes]


class ServingState(NamedTuple):
    """All that serving a request needs, once the server is ready; `policy` orders the requests that
    wait in the engine."""

    input: InputContext
    shared_prefixes: SharedPrefixes
    policy: PolicyName

    @property
    def facts(self) -> EngineFacts:
        return self.input.facts

    @property
    def defaults(self) -> SamplingDefaults:
        return self.input.limits.defaults

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.input.tokenizer


class Subscribers(NamedTuple):
    """Subscribers to the engine: each gets every report of it."""

    metrics: ServerMetrics
    timelines: Timelines
    kv_events: KVEventFeed

    def on_output(self, output: EngineOutput) -> None:
        for each in self:
            each.on_output(output)


class Service:
    """The state of one server.

    submit_lock: held by a request of many outputs while it submits them to the engine.
    startup_s: once the server is ready, the seconds of each phase of the engine's start and, as
        `total`, those since this process began.
    arrival_throttle, work_throttle: the first is waited for by each head of a request, the second
        by each piece of the work for it: what comes at once is not done in one iteration of the
        event loop.
    spans: send what became of requests to a collector, if there is one.
    failure: why the start failed.
    num_open: requests without a complete answer; `bodies` still reads the bodies of some.
    drains: done when no new request is taken. cut_off: done when those that still run must end.
    """

    def __init__(
        self,
        config: ServerConfig,
        engine: EngineProtocol,
        tenants: Tenants,
        subscribers: Subscribers,
        sources: Sources,
    ) -> None:
        self.config = config
        self.engine = engine
        self.tenants = tenants
        self.metrics, self.timelines, self.kv_events = subscribers
        self.sources = sources
        self.spans = _request_spans(config, self.metrics, sources)
        self.tokenizer: TextTokenizer | None = None
        self.defaults = SamplingDefaults()
        self.shared_prefixes = SharedPrefixes()
        self._output_formats = OutputFormats(None, None)
        self.failure: str | None = None
        self.num_open = 0
        self.inputs = InputReader(
            config.engine.model.model,
            config.engine.model.revision,
            max_body_bytes=config.max_body_bytes,
            max_waiting=WAITING_BODIES * config.max_body_bytes,
            clock=sources.clock,
        )
        self._is_stuck_logged = False
        self.began_s = sources.clock()
        self.startup_s: dict[str, float] = {}
        self.submit_lock = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self.drains: asyncio.Future[None] = loop.create_future()
        self.cut_off: asyncio.Future[None] = loop.create_future()
        self.bodies = BodyReader(config, self.metrics, self.cut_off)
        self.arrival_throttle, self.work_throttle = (
            LoopThrottle(sources.clock),
            LoopThrottle(sources.clock),
        )

    async def start(self) -> None:
        """Start engine and tokenizer side by side; return when both are there or one has failed."""
        try:
            await self.engine.start()
            await asyncio.to_thread(self._load)
        except (TokenizerError, SharedPrefixError, OSError) as error:
            self.failure = str(error)
            return
        while self.engine.phase not in (Phase.READY, Phase.DOWN):
            await asyncio.sleep(POLL_S)
        if self.engine.facts is None:
            self.failure = self.engine.down_reason or "the engine did not start"
            return
        if self.tokenizer is not None and self.engine.facts.eos_token_ids:
            prepare_check(vocabulary_of(self.engine.facts, self.tokenizer))
        self.startup_s = {
            **self.engine.facts.startup_s,
            "total": process_age_s(self.sources.now()),
        }
        self.metrics.on_ready(self.engine.facts)

    def _load(self) -> None:
        source = self.config.engine.model
        if self.config.generation_config is GenerationConfig.AUTO:
            self.defaults = load_sampling_defaults(source.model, source.revision)
        tokenizer = load_tokenizer(source.model, source.revision)
        if self.config.shared_prefix_file is not None:
            self.shared_prefixes = load_shared_prefixes(self.config.shared_prefix_file, tokenizer)
        template = "" if tokenizer.template is None else tokenizer.template.source
        self._output_formats = output_formats(self.config, template)
        self.tokenizer = tokenizer

    def serving_state(self) -> ServingState:
        """Return what serving needs. Raises the RequestError that says why no request can be
        taken."""
        if self.draining:
            raise ShuttingDown
        if self.engine.phase is Phase.DOWN or self.failure is not None:
            raise EngineGone(f"The engine is down: {self.failure or self.engine.down_reason}")
        if self.tokenizer is None or self.engine.facts is None:
            phase, done, total = self.engine.progress
            raise ModelLoading(f"The model is loading: {phase} {done}/{total}.")
        facts = self.engine.facts
        max_outputs = facts.max_num_seqs + self.config.engine.scheduling.max_num_queued_reqs
        limits = InputLimits(
            facts,
            max_outputs,
            self.config.served_model_names,
            *self._output_formats,
            max_logprobs=self.config.max_logprobs,
            defaults=self.defaults,
            trusts_chat_template=self.config.trust_request_chat_template,
        )
        return ServingState(
            InputContext(limits, self.tokenizer),
            self.shared_prefixes,
            self.config.engine.scheduling.scheduling_policy,
        )

    @property
    def is_loaded(self) -> bool:
        return self.engine.facts is not None and self.tokenizer is not None

    @property
    def is_down(self) -> bool:
        return self.failure is not None or self.engine.phase is Phase.DOWN

    @property
    def is_stuck(self) -> bool:
        return self.engine.last_progress_age_s() > self.config.stuck_after_s

    def log_if_stuck(self) -> None:
        """Log once when the engine gets stuck and once when it moves on."""
        if self.is_down or self.is_stuck == self._is_stuck_logged:
            return
        self._is_stuck_logged = not self._is_stuck_logged
        if self._is_stuck_logged:
            logger.error(
                "the engine is stuck: with %d requests no step has ended for %.1f s",
                self.engine.num_unfinished,
                self.engine.last_progress_age_s(),
            )
        else:
            logger.warning("the engine moves on")

    @property
    def draining(self) -> bool:
        return self.drains.done()

    def drain(self) -> None:
        """Take no new request from now on."""
        if not self.drains.done():
            self.drains.set_result(None)

    def cut(self) -> None:
        """End every response that still runs."""
        if not self.cut_off.done():
            self.cut_off.set_result(None)


def _request_spans(
    config: ServerConfig, metrics: ServerMetrics, sources: Sources
) -> RequestSpans | None:
    endpoint = config.engine.tracing.otlp_traces_endpoint
    if endpoint is None:
        return None
    return RequestSpans(endpoint, sources.now() - sources.clock(), metrics.dropped_traces)
