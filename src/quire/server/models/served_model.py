"""A served model: its engine, its tokenizer, and all that is its own in a server."""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from quire.engine.config import SchedulingConfig
from quire.engine.grammar.tokenizer_facts import TokenizerError
from quire.engine.messages import EngineFacts, EngineOutput
from quire.engine.orders import ResetPrefixCache
from quire.engine.recording.flight_file import FileKind
from quire.engines.process.client import EnginePhase
from quire.engines.process.end_cause import EndCause
from quire.engines.protocol import EngineProtocol, OpenEngine
from quire.process_age import process_age_s
from quire.scheduler.step import Delta
from quire.server.config import (
    GenerationConfig,
    LoadTime,
    ServedModelConfig,
    ServerConfig,
    UnknownFieldPolicy,
)
from quire.server.errors import EngineGone, ModelLoading
from quire.server.grammars.check import prepare_check, vocabulary_of
from quire.server.models.input_context import InputContext, InputLimits, TokenizerSource
from quire.server.models.lifecycle import (
    Actions,
    Lifecycle,
    LoadFailed,
    ModelState,
    WaitLimits,
)
from quire.server.models.model_prefixes import ModelPrefixes
from quire.server.models.output_formats import OutputFormats, describe_tool_calls, output_formats
from quire.server.models.sampling_defaults import SamplingDefaults, load_sampling_defaults
from quire.server.models.shared_prefixes import ReadPrefixes, SharedPrefixError, SharedPrefixes
from quire.server.observability.kv_event_feed import KVEventFeed
from quire.server.observability.live.live_feed import LiveFeed
from quire.server.observability.metrics import ModelMetrics
from quire.server.observability.timelines import Timelines
from quire.server.sources import Sources
from quire.server.text.tokenizer import TextTokenizer, load_tokenizer

logger = logging.getLogger(__name__)

POLL_S = 0.05
MAX_MEMORY_RETRY_S = 5.0
WAITING_BODIES = 8
"""So many of the largest bodies may wait for a model to load."""
_READ_ERRORS = (TokenizerError, SharedPrefixError, OSError)


class Subscribers(NamedTuple):
    """Subscribers to an engine: each gets every report of it. `timelines` are those of the
    server; `prefixes` are told when an engine is ready."""

    metrics: ModelMetrics
    kv_events: KVEventFeed
    timelines: Timelines
    prefixes: ModelPrefixes
    live: LiveFeed

    def on_output(self, output: EngineOutput) -> None:
        self.metrics.on_output(output)
        self.timelines.on_output(output)
        self.kv_events.on_output(output)
        self.live.on_output(output)

    def on_ended_here(self, delta: Delta) -> None:
        """Take the last delta of a request that has ended while no engine had it."""
        self.timelines.on_delta(delta)

    def on_engine_lost(self, cause: EndCause) -> None:
        """Note that an engine has ended, its cache with it, and that another follows."""
        self.metrics.on_engine_lost(cause)
        self.kv_events.on_cleared()
        self.live.on_engine_gone()

    def on_quarantined(self) -> None:
        """Note that a request was ended because it crashes engines."""
        self.metrics.num_quarantined += 1

    def on_flight_kept(self, is_written: bool) -> None:
        """Count a flight record of an engine that has ended."""
        self.metrics.flight_records.count(FileKind.ENGINE_ENDED, is_written=is_written)

    def on_engine_resumed(self, num_resumed: int, out_of_service_s: float) -> None:
        """Note that another engine goes on with `num_resumed` requests."""
        self.metrics.on_engine_resumed(num_resumed, out_of_service_s)
        self.prefixes.on_cache_empty()
        self.live.on_engine_resumed()


class Openers(NamedTuple):
    """Openers of what a model has: its engine, and the file of its shared prefixes."""

    engine: OpenEngine
    shared_prefixes: ReadPrefixes


class ServedModel:
    """One model of a server.

    lifecycle: loads and unloads it. Each load has an engine of its own; the tokenizer stays.
    known_facts: those of the engine, or of the one before it.
    submit_lock: held by a request of many outputs while it submits them to the engine.
    startup_s: once the model is ready, the seconds of each phase of the engine's start and, as
        `total`, those of the whole load; of one at the server's start, since its process began.
    is_starting: the server starts, and does not take requests for the model before it is loaded.
    """

    def __init__(
        self,
        config: ServedModelConfig,
        server: ServerConfig,
        openers: Openers,
        subscribers: Subscribers,
        sources: Sources,
    ) -> None:
        self.config = config
        self.metrics, self.kv_events, _, self.prefixes, self.live = subscribers
        self._open_engine = partial(openers.engine, config.engine, subscribers)
        self._read_prefixes = openers.shared_prefixes
        self.engine: EngineProtocol = self._open_engine()
        self.known_facts: EngineFacts | None = None
        self.tokenizer: TextTokenizer | None = None
        self.defaults = SamplingDefaults()
        self.shared_prefixes = SharedPrefixes()
        self.is_starting = config.load is LoadTime.AT_START
        self.startup_s: dict[str, float] = {}
        self.submit_lock = asyncio.Lock()
        self._server = server
        self._sources = sources
        self.output_formats = OutputFormats(None, None)
        self._is_stuck_logged = False
        self._noted: set[str] = set()
        self.lifecycle = Lifecycle(
            Actions(self._load, self._unload),
            unload_after_s=config.unload_after_s,
            limits=WaitLimits(
                config.engine.scheduling.max_num_queued_reqs,
                WAITING_BODIES * server.max_body_bytes,
            ),
            clock=sources.clock,
        )

    @property
    def name(self) -> str:
        """The name that metrics carry."""
        return self.config.name

    async def start(self) -> None:
        """Load the model, or what is the server's part of it; return when it is there or has
        failed."""
        if self.config.load is LoadTime.AT_START:
            await self.lifecycle.load()
            if self._server.is_socket_inherited:
                await self._wait_for_memory()
            self.is_starting = False
            return
        try:
            await asyncio.to_thread(self._read_files)
        except _READ_ERRORS as error:
            logger.warning("%s cannot be loaded yet: %s", self.name, error)

    async def _wait_for_memory(self) -> None:
        """Load the model again and again while memory is what it lacks: a server that drains on the
        same socket gives back its own when it ends, and requests wait in the socket."""
        clock = self._sources.clock
        until_s = clock() + self._server.predecessor_s
        while self.waits_for_memory and clock() < until_s:
            left_s, why = until_s - clock(), self.down_reason
            logger.warning("%s waits for memory, %.0f s at most: %s", self.name, left_s, why)
            await asyncio.sleep(min(self.lifecycle.retry_in_s, MAX_MEMORY_RETRY_S))
            await self.lifecycle.load()

    async def _load(self) -> None:
        """Start an engine beside reading the model's files. Raises LoadFailed."""
        began_s = self._sources.clock()
        if self.engine.phase is not EnginePhase.STARTING:
            self.engine = self._open_engine()
        try:
            facts = await self._start_engine()
        except LoadFailed as error:
            if not self.is_starting:
                logger.error("%s cannot be loaded: %s", self.name, error)
            await self.engine.close()
            raise
        if self.tokenizer is not None and facts.eos_token_ids:
            prepare_check(vocabulary_of(facts, self.tokenizer))
        total_s = self._sources.clock() - began_s
        if self.is_starting:
            total_s = process_age_s(self._sources.now())
        self.startup_s = {**facts.startup_s, "total": total_s}
        self.metrics.on_ready(facts)
        self.known_facts = facts
        self.prefixes.on_engine_ready(self.engine)
        self.live.on_engine_ready(self.engine)
        logger.info("%s is loaded after %.1f s", self.name, total_s)

    async def _start_engine(self) -> EngineFacts:
        try:
            await self.engine.start()
            if self.tokenizer is None:
                await asyncio.to_thread(self._read_files)
        except _READ_ERRORS as error:
            raise LoadFailed(str(error)) from None
        while self.engine.phase not in (EnginePhase.READY, EnginePhase.DOWN):
            await asyncio.sleep(POLL_S)
        if self.engine.facts is None:
            raise LoadFailed(self.engine.down_reason or "the engine did not start")
        return self.engine.facts

    def _read_files(self) -> None:
        source = self.config.engine.model
        if self.config.generation_config is GenerationConfig.AUTO:
            found = load_sampling_defaults(source.model, source.revision)
            self.defaults = found.with_temperature(self.config.default_temperature)
        tokenizer = load_tokenizer(source.model, source.revision)
        if self.config.shared_prefix_file is not None:
            self.shared_prefixes = self._read_prefixes(self.config.shared_prefix_file, tokenizer)
        self.output_formats = output_formats(self.config, tokenizer.template)
        if tokenizer.template is not None:
            logger.info("%s: %s", self.name, describe_tool_calls(self.output_formats))
        self.tokenizer = tokenizer

    async def _unload(self) -> None:
        """End the engine; its cache is gone with it."""
        await self.engine.close()
        logger.info("%s is unloaded", self.name)
        self.metrics.on_unloaded()
        self.kv_events.on_cleared()
        self.live.on_engine_gone()
        self.engine = self._open_engine()

    def note_once(self, sentences: Iterable[str]) -> None:
        """Log sentences on what the model takes otherwise than clients give it, each once."""
        for sentence in sentences:
            if sentence not in self._noted:
                self._noted.add(sentence)
                logger.warning("%s: %s", self.name, sentence)

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache. What is pinned is computed again. Raises EngineDown."""
        self.engine.order(ResetPrefixCache())
        self.prefixes.on_cache_empty()

    async def close(self) -> None:
        """End the engine."""
        await self.lifecycle.close()
        await self.prefixes.close()
        await self.engine.close()

    def serving_state(self) -> "ServingState":
        """Return what serving needs, for a request that uses the model: it may be about to be
        unloaded after that. Raises the RequestError that says why it cannot be served."""
        if self.has_died or self.tokenizer is None or self.engine.facts is None:
            self.check_is_loaded()
        assert self.tokenizer is not None and self.engine.facts is not None
        facts, source = self.engine.facts, self.config.engine.model
        max_outputs = facts.max_num_seqs + self.config.engine.scheduling.max_num_queued_reqs
        keeps_prefixes = self.config.engine.memory.enable_prefix_caching
        limits = InputLimits(
            facts,
            max_outputs,
            self.config.served_model_names,
            *self.output_formats,
            max_logprobs=self._server.max_logprobs,
            defaults=self.defaults,
            trusts_chat_template=self._server.trust_request_chat_template,
            disables_whitespace=self.config.disable_any_whitespace,
            refuses_unknown_fields=self._server.unknown_fields is UnknownFieldPolicy.REFUSE,
            model_aliases=tuple(
                each
                for each in self._server.model_aliases
                if each.name in self.config.served_model_names
            ),
            keeps_prefixes=keeps_prefixes,
            max_retention_s=self._server.max_prompt_retention_s if keeps_prefixes else 0.0,
        )
        return ServingState(
            self,
            InputContext(limits, self.tokenizer, TokenizerSource(source.model, source.revision)),
            self.shared_prefixes,
            self.config.engine.scheduling,
        )

    def check_is_loaded(self) -> None:
        """Raise the RequestError that says why the model cannot be used now, if it cannot."""
        if self.state is ModelState.FAILED:
            raise EngineGone(f"The engine is down: {self.down_reason}")
        if self.state is not ModelState.LOADED:
            phase, done, total = self.engine.progress
            raise ModelLoading(f"The model is loading: {phase} {done}/{total}.")

    @property
    def state(self) -> ModelState:
        return ModelState.FAILED if self.has_died else self.lifecycle.state

    @property
    def is_loaded(self) -> bool:
        return self.lifecycle.state is ModelState.LOADED

    @property
    def has_died(self) -> bool:
        """Whether the engine has ended although nobody has ended it, and none follows it."""
        return self.lifecycle.state is ModelState.LOADED and self.engine.phase is EnginePhase.DOWN

    @property
    def is_restarting(self) -> bool:
        """Whether the engine has ended and another one loads: requests wait."""
        return self.engine.phase is EnginePhase.RESTARTING

    @property
    def waits_for_memory(self) -> bool:
        """Whether the model could not be loaded for want of memory, while the server starts."""
        return self.is_starting and self.state is ModelState.FAILED and self.engine.lacks_memory

    @property
    def facts(self) -> EngineFacts | None:
        """The facts of the engine, while it is ready."""
        return self.engine.facts

    @property
    def down_reason(self) -> str | None:
        """The reason why the model is down; None if it is not."""
        return self.engine.down_reason if self.has_died else self.lifecycle.failure

    @property
    def is_stuck(self) -> bool:
        return self.engine.last_progress_age_s() > self._server.stuck_after_s

    def log_if_stuck(self) -> None:
        """Log once when the engine gets stuck and once when it moves on."""
        if self.state is ModelState.FAILED or self.is_stuck == self._is_stuck_logged:
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
    """All that serving a request needs, once its model is ready; by `scheduling` the engine orders
    what waits."""

    model: ServedModel
    input: InputContext
    shared_prefixes: SharedPrefixes
    scheduling: SchedulingConfig

    @property
    def facts(self) -> EngineFacts:
        return self.input.facts

    @property
    def defaults(self) -> SamplingDefaults:
        return self.input.limits.defaults

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.input.tokenizer
