"""The fields that completions and chat share, with their ranges, and what the engine is told of
those that sampling takes. `None` is the same as absent.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from quire.scheduler.request import Sampling
from quire.server.models.input_context import MAX_LOGPROBS
from quire.server.models.sampling_defaults import SamplingDefaults

MAX_CHOICES = 128
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARS = 256
INT64_MAX = 2**63 - 1
MAX_PRIORITY = 10**9


def at_most(most: int) -> BeforeValidator:
    """Return a validator that refuses a longer list or object before anything is made of its
    items."""

    def check(given: object) -> object:
        if isinstance(given, list | dict) and len(given) > most:
            raise PydanticCustomError(
                "too_long",
                "has {num} items, at most {most} are allowed",
                {"num": len(given), "most": most},
            )
        return given

    return BeforeValidator(check)


class StrictModel(BaseModel):
    """A part of a request. The first field that it does not know is refused, before the others are
    looked at; of the values of a list the first wrong one ends the check.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: object) -> object:
        if isinstance(given, dict):
            unknown = next((key for key in given if key not in cls.model_fields), None)
            if unknown is not None:
                raise PydanticCustomError("unknown_field", "is unknown", {"name": str(unknown)})
        return given


TokenId: TypeAlias = Annotated[int, Field(ge=0, le=INT64_MAX)]
Positive: TypeAlias = Annotated[int, Field(ge=1, le=INT64_MAX)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
StopString: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def _one_or_many(given: object) -> object:
    return [given] if isinstance(given, str) else given


_STOP_STRING_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_STOP_SCHEMA = {
    "anyOf": [
        _STOP_STRING_SCHEMA,
        {"type": "array", "items": _STOP_STRING_SCHEMA, "maxItems": MAX_STOP_STRINGS},
    ]
}

StopStrings: TypeAlias = Annotated[
    list[StopString],
    Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
    at_most(MAX_STOP_STRINGS),
    BeforeValidator(_one_or_many),
    WithJsonSchema(_STOP_SCHEMA),
]
LogitBias: TypeAlias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIAS),
    at_most(MAX_LOGIT_BIAS),
]
StopTokenIds: TypeAlias = Annotated[
    list[TokenId],
    Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True),
    at_most(MAX_STOP_TOKEN_IDS),
]

AllowedTokenIds: TypeAlias = Annotated[
    list[TokenId],
    Field(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS, fail_fast=True),
    at_most(MAX_ALLOWED_TOKEN_IDS),
]
LogprobTokenIds: TypeAlias = Annotated[
    list[TokenId],
    Field(max_length=MAX_LOGPROB_TOKEN_IDS, fail_fast=True),
    at_most(MAX_LOGPROB_TOKEN_IDS),
]
BadWords: TypeAlias = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]],
    Field(max_length=MAX_BAD_WORDS, fail_fast=True),
    at_most(MAX_BAD_WORDS),
]


class TruncationSide(StrEnum):
    """The sides at which a prompt can be cut."""

    LEFT = "left"
    RIGHT = "right"


class StreamOptions(StrictModel):
    """Options of what a stream tells beside the text. Chunks are never padded (obfuscation)."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None


class GenerationFields(StrictModel):
    """The fields that both endpoints take. `max_tokens` is the older name of
    `max_completion_tokens`. Less `priority` is sooner; `deadline_ms` counts from the arrival of the
    request."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: AllowedTokenIds | None = None
    bad_words: BadWords | None = None
    seed: Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: StopStrings | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    logprob_token_ids: LogprobTokenIds | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    truncation_side: Annotated[TruncationSide, Field(strict=False)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    deadline_ms: Annotated[float, Field(gt=0)] | None = None

    @property
    def default_max_tokens(self) -> int:
        """The tokens that a cut prompt leaves for an output whose length the client left out."""
        return 1

    @property
    def num_returned(self) -> int:
        """The number of outputs of each prompt that are returned."""
        return self.n or 1

    @property
    def num_generated(self) -> int:
        """The number of outputs of each prompt that are generated."""
        return self.num_returned

    @property
    def num_output_logprobs(self) -> int | None:
        """The number of alternatives that each token of an output gets; None: no log
        probabilities."""
        return None

    @property
    def logprob_counts(self) -> Mapping[str, int | None]:
        """The numbers of likeliest tokens that are asked for, by their field."""
        return {"prompt_logprobs": self.prompt_logprobs}

    @property
    def token_id_lists(self) -> Mapping[str, Sequence[int]]:
        """The lists of token ids by their field: each id must be of the vocabulary."""
        return {
            "stop_token_ids": self.stop_token_ids or (),
            "allowed_token_ids": self.allowed_token_ids or (),
            "logprob_token_ids": self.logprob_token_ids or (),
        }

    def sampling(self, defaults: SamplingDefaults, vocab_size: int) -> Sampling:
        """Return how tokens are sampled, once the fields are checked against the vocabulary.

        defaults: the model's own, for what the client leaves out.
        """
        top_k = _first(self.top_k, defaults.top_k, 0)
        bias = self.logit_bias or {}
        return Sampling(
            temperature=_first(self.temperature, defaults.temperature, 1.0),
            top_k=max(0, min(int(top_k), vocab_size)),
            top_p=_first(self.top_p, defaults.top_p, 1.0),
            min_p=_first(self.min_p, defaults.min_p, 0.0),
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty, 1.0),
            frequency_penalty=_first(self.frequency_penalty, None, 0.0),
            presence_penalty=_first(self.presence_penalty, None, 0.0),
            logit_bias=tuple((int(key), float(value)) for key, value in bias.items()),
            allowed_token_ids=tuple(self.allowed_token_ids or ()),
            logprob_token_ids=tuple(self.logprob_token_ids or ()),
        )


def _first(given: float | None, of_model: float | None, otherwise: float) -> float:
    """Return what the client gave, else what the model's own file says, else OpenAI's default."""
    if given is not None:
        return float(given)
    return otherwise if of_model is None else float(of_model)
