"""`POST /v1/completions`: the request as it comes in."""

from typing import Annotated, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from quire.server.apis.protocol.fields import MAX_CHOICES
from quire.server.apis.protocol.structured import StructuredFields
from quire.server.generation.input import GivenPrompt
from quire.server.models.input_context import MAX_LOGPROBS

MAX_PROMPTS = 1024
DEFAULT_MAX_TOKENS = 16


def _read_prompts(given: object) -> tuple[GivenPrompt, ...]:
    return read_given_prompts(given, "prompt")


def read_given_prompts(given: object, field: str) -> tuple[GivenPrompt, ...]:
    """Read a text, a list of texts, token ids, or a list of lists of token ids, which are always
    told apart; they stand in `field`. Raises PydanticCustomError."""
    if isinstance(given, str):
        return (GivenPrompt(_read_text(given, ""), field),)
    if not isinstance(given, list):
        raise _prompt_error("must be a string, a list of strings, token ids, or lists of token ids")
    if not given:
        raise _prompt_error("must not be empty")
    if isinstance(given[0], int):
        return (GivenPrompt(_read_token_ids(given, ""), field),)
    if len(given) > MAX_PROMPTS:
        raise _prompt_error(f"holds {len(given)} {field}s, at most {MAX_PROMPTS} are allowed")
    read = _read_text if isinstance(given[0], str) else _read_token_ids
    places = [f"[{index}]" for index in range(len(given))]
    return tuple(
        GivenPrompt(read(each, place), f"{field}{place}")
        for each, place in zip(given, places, strict=True)
    )


def _read_text(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise _prompt_error("must be a string, as the first one is", where)
    return given


def _read_token_ids(given: object, where: str) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise _prompt_error("must be a list of token ids", where)
    if not given:
        raise _prompt_error("must not be empty", where)
    for index, token_id in enumerate(given):
        if type(token_id) is not int or token_id < 0:
            raise _prompt_error("must be a token id, 0 or more", f"{where}[{index}]")
    return tuple(given)


def _prompt_error(message: str, where: str = "") -> PydanticCustomError:
    return PydanticCustomError("prompt", "{message}", {"message": message, "where": where})


_TEXT_SCHEMA = {"type": "string"}
_TOKENS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        _TOKENS_SCHEMA,
        {"type": "array", "items": _TEXT_SCHEMA, "minItems": 1, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": _TOKENS_SCHEMA, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}

Prompts: TypeAlias = Annotated[
    tuple[GivenPrompt, ...], PlainValidator(_read_prompts), WithJsonSchema(PROMPT_SCHEMA)
]


class CompletionRequest(StructuredFields):
    """`max_tokens` 0 is allowed with `echo`: the prompt comes back, with its log probabilities.
    The output stands between a prompt and its `suffix`. Of `best_of` outputs the `n` of the highest
    mean log probability per token are shown."""

    prompt: Prompts
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
