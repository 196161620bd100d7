"""A served model: its engine, its tokenizer, and all that is its own in a server."""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from quire.engine.client import Phase
from quire.engine.messages import EngineFacts, EngineOutput
from quire.process_age import process_age_s
from quire.scheduler.policy import PolicyName
from quire.server.config import GenerationConfig, ServedModelConfig, ServerConfig
from quire.server.engine_protocol import EngineProtocol, OpenEngine
from quire.server.errors import EngineGone, ModelLoading
from quire.server.grammars.check import prepare_check
from quire.server.models.output_formats import OutputFormats, output_formats
from quire.server.observability.kv_event_feed import KVEventFeed
from quire.server.observability.metrics import ModelMetrics
from quire.server.requests.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.requests.sampling_defaults import SamplingDefaults, load_sampling_defaults
from quire.server.requests.structured_outputs import vocabulary_of
from quire.server.sources import Sources
from quire.server.tenancy.shared_prefixes import (
    SharedPrefixError,
    SharedPrefixes,
    load_shared_prefixes,
)
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer
from quire.server.text.tokenizer_files import TokenizerError

logger = logging.getLogger(__name__)

POLL_S = 0.05


class Subscribers(NamedTuple):
    """Subscribers to an engine: each gets every report of it. `timelines` are those of the
    server."""

    metrics: ModelMetrics
    kv_events: KVEventFeed
    on_timelines: Callable[[EngineOutput], None]

    def on_output(self, output: EngineOutput) -> None:
        self.metrics.on_output(output)
        self.on_timelines(output)
        self.kv_events.on_output(output)


class ServedModel:
    """One model of a server.

    submit_lock: held by a request of many outputs while it submits them to the engine.
    startup_s: once the model is ready, the seconds of each phase of the engine's start and, as
        `total`, those since this process began.
    failure: why the start failed.
    """

    def __init__(
        self,
        config: ServedModelConfig,
        server: ServerConfig,
        open_engine: OpenEngine,
        subscribers: Subscribers,
        sources: Sources,
    ) -> None:
        self.config = config
        self.metrics, self.kv_events, _ = subscribers
        self.engine: EngineProtocol = open_engine(config.engine, subscribers.on_output)
        self.tokenizer: TextTokenizer | None = None
        self.defaults = SamplingDefaults()
        self.shared_prefixes = SharedPrefixes()
        self.failure: str | None = None
        self.startup_s: dict[str, float] = {}
        self.submit_lock = asyncio.Lock()
        self._server = server
        self._sources = sources
        self.output_formats = OutputFormats(None, None)
        self._is_stuck_logged = False

    @property
    def name(self) -> str:
        """The name that metrics carry."""
        return self.config.name

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
            "total": process_age_s(self._sources.now()),
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
        self.output_formats = output_formats(self.config, template)
        self.tokenizer = tokenizer

    async def close(self) -> None:
        """End the engine."""
        await self.engine.close()

    def serving_state(self) -> "ServingState":
        """Return what serving needs. Raises the RequestError that says why no request can be
        taken."""
        if self.is_down:
            raise EngineGone(f"The engine is down: {self.down_reason}")
        if self.tokenizer is None or self.engine.facts is None:
            phase, done, total = self.engine.progress
            raise ModelLoading(f"The model is loading: {phase} {done}/{total}.")
        facts, source = self.engine.facts, self.config.engine.model
        max_outputs = facts.max_num_seqs + self.config.engine.scheduling.max_num_queued_reqs
        limits = InputLimits(
            facts,
            max_outputs,
            self.config.served_model_names,
            *self.output_formats,
            max_logprobs=self._server.max_logprobs,
            defaults=self.defaults,
            trusts_chat_template=self._server.trust_request_chat_template,
        )
        return ServingState(
            self,
            InputContext(limits, self.tokenizer, TokenizerSource(source.model, source.revision)),
            self.shared_prefixes,
            self.config.engine.scheduling.scheduling_policy,
        )

    @property
    def facts(self) -> EngineFacts | None:
        """The facts of the engine, once it is ready."""
        return self.engine.facts

    @property
    def down_reason(self) -> str | None:
        """The reason why the model is down; None if it is not."""
        return self.failure or self.engine.down_reason

    @property
    def is_loaded(self) -> bool:
        return self.engine.facts is not None and self.tokenizer is not None

    @property
    def is_down(self) -> bool:
        return self.failure is not None or self.engine.phase is Phase.DOWN

    @property
    def is_stuck(self) -> bool:
        return self.engine.last_progress_age_s() > self._server.stuck_after_s

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


class ServingState(NamedTuple):
    """All that serving a request needs, once its model is ready; `policy` orders the requests that
    wait in the engine."""

    model: ServedModel
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
