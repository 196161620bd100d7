"""The account of an answer, as it is sent: tokens, times and progress."""

import msgspec
from msgspec import UNSET, UnsetType


class CachedTokens(msgspec.Struct, frozen=True):
    """The tokens of prompts that were found in the prefix cache, and those that were put into
    it."""

    cached_tokens: int
    cache_write_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """`prompt_tokens_details` is null where the engine's account of the prompt is not known;
    `completion_tokens_details` is left out where outputs are not parsed for reasoning."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Timing(msgspec.Struct, frozen=True):
    """The parts of one choice's time, as the engine measured them."""

    index: int
    queue_s: float
    prefill_s: float
    decode_s: float
    cached_tokens: int
    preemptions: int


class ChoiceAccount(msgspec.Struct, frozen=True):
    """Quire's own part of a choice, where the grammar of its output did not hold it to all of the
    schema: whether it is valid, null where that could not be found out."""

    schema_valid: bool | None


class QuireAccount(msgspec.Struct, frozen=True):
    """Quire's own part of an answer; clients of other servers do not look for it."""

    timings: tuple[Timing, ...]


class PromptProgress(msgspec.Struct, frozen=True):
    """The tokens of a prompt that are computed, `processed` of `total`, `time_ms` after the request
    arrived; `cache` of them were found in the cache. Fields as llama-server has them."""

    total: int
    cache: int
    processed: int
    time_ms: float
