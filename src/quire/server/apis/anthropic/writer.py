"""The wire form of a message: one body, or server-sent events."""

from collections.abc import Iterable, Sequence

import msgspec

from quire.server.apis.anthropic.blocks import BlockStream, joined_blocks, parts_of
from quire.server.apis.anthropic.errors import MessageError, message_error
from quire.server.apis.anthropic.wire import (
    CacheCreation,
    Event,
    MessageBody,
    MessageDelta,
    MessageEnding,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    Ping,
)
from quire.server.errors import RequestError
from quire.server.generation.generation_stream import GenerationStream
from quire.server.generation.output_delta import Ending, OutputDelta, choice_account
from quire.server.generation.usage import CompletionTokensDetails

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def events_of(events: Iterable[Event | MessageError]) -> bytes:
    """Return server-sent events, each under the name of its type."""
    return b"".join(map(_event, events))


def _event(event: Event | MessageError) -> bytes:
    name = str(type(event).__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


class MessageWriter:
    """Writes a message. A stream begins once it is known how much of the prompt the cache has."""

    def __init__(self, generation: GenerationStream) -> None:
        self._generation = generation
        self._context = generation.context
        self._blocks = BlockStream()
        self._has_begun = False
        self._ending: Ending | None = None

    def opening(self) -> bytes:
        return b""

    def chunk(self, choice: int, delta: OutputDelta) -> bytes:
        self._ending = delta.ending or self._ending
        events = self._begin(0 if delta.progress is None else delta.progress.cache)
        if delta.progress is not None and not delta.token_ids:
            events.append(Ping())
        for part in parts_of(delta, self._context.text_options):
            events += self._blocks.add(part)
        return events_of(events)

    def _begin(self, num_cached: int) -> list[Event]:
        """Return the first event, once."""
        if self._has_begun:
            return []
        self._has_begun = True
        usage = self._prompt_usage(num_cached)
        return [
            MessageStart(MessageBody(self._context.id, self._context.model, (), None, None, usage))
        ]

    def closing(self) -> bytes:
        ending, usage = self._message_ending(self._ending), self._usage()
        delta = MessageDelta(ending, usage, choice_account(self._ending))
        return events_of([*self._begin(0), *self._blocks.end(), delta, MessageStop()])

    def failure(self, error: RequestError) -> bytes:
        return events_of([message_error(error, self._context.arrival.request_id)])

    def whole(self, outputs: Sequence[OutputDelta]) -> bytes:
        (output,) = outputs
        ending = self._message_ending(output.ending)
        message = MessageBody(
            self._context.id,
            self._context.model,
            joined_blocks(parts_of(output, self._context.text_options)),
            ending.stop_reason,
            ending.stop_sequence,
            self._usage(),
            quire=choice_account(output.ending),
        )
        return msgspec.json.encode(message)

    def _message_ending(self, ending: Ending | None) -> MessageEnding:
        """Return why a message ended: one that was cancelled with `abort`, for which Anthropic has
        no word. One with a call that broke off ended its turn, and wants no tool to be used."""
        if ending is None:
            return MessageEnding(None, None)
        if isinstance(ending.stop_reason, str):
            return MessageEnding("stop_sequence", ending.stop_reason)
        if ending.finish_reason == "stop" and ending.num_whole and not ending.num_broken:
            return MessageEnding("tool_use", None)
        if ending.finish_reason == "length" and self._context.is_cut:
            return MessageEnding("model_context_window_exceeded", None)
        return MessageEnding(_STOP_REASONS.get(ending.finish_reason, ending.finish_reason), None)

    def _prompt_usage(self, num_cached: int) -> MessageUsage:
        """Return how many tokens of the prompt the cache had, and how many of those that it had not
        are in it now since the client has asked for that."""
        (prompt,) = self._context.prompts
        num_created = max(prompt.num_cacheable - num_cached, 0)
        num_long = max(prompt.num_cacheable_long - num_cached, 0)
        num_others = len(prompt.token_ids) - num_cached - num_created
        created = CacheCreation(num_created - num_long, num_long)
        return MessageUsage(num_others, 0, num_cached, num_created, created)

    def _usage(self) -> MessageUsage:
        usage = self._generation.usage()
        details, cached = usage.completion_tokens_details, usage.prompt_tokens_details
        made = self._prompt_usage(cached.cached_tokens if cached else 0)
        made = msgspec.structs.replace(made, output_tokens=usage.completion_tokens)
        if not isinstance(details, CompletionTokensDetails):
            return made
        thinking = OutputTokensDetails(details.reasoning_tokens)
        return msgspec.structs.replace(made, output_tokens_details=thinking)
