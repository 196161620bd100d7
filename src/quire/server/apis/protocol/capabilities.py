"""The table of the fields of OpenAI's, Anthropic's and vLLM's requests, with those that routers
add, and what becomes of those that Quire does not act on.

A field that the model of an endpoint's requests defines is acted on there, whatever the table says
of it. Models and table together are the whole vocabulary: any other field is unknown and refused.
Reasoning is separated wherever the format of the model's is known, and streamed as it comes: to
ask for that asks for nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from pydantic import BaseModel

from quire.server.http.endpoints import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RERANK,
    RESPONSES,
    SCORE,
)

BOTH = (COMPLETIONS, CHAT)


class Support(StrEnum):
    """The ways in which Quire supports a field: it acts on it; it reports that it does not, where
    that cannot change the answer; or it refuses the request by the field's name."""

    SUPPORTED = "supported"
    NO_EFFECT = "reported"
    UNSUPPORTED = "refused"


@dataclass(frozen=True, slots=True)
class Capability:
    """The support that a field has. `passing` are values that ask for nothing, beside null; an
    unsupported field with any other value is refused."""

    field: str
    support: Support
    endpoints: tuple[str, ...] = BOTH
    passing: tuple[object, ...] = ()

    def passes(self, value: object) -> bool:
        if value is None or self.support is not Support.UNSUPPORTED:
            return True
        return any(type(value) is type(each) and value == each for each in self.passing)


def _no_effect(endpoints: tuple[str, ...], *fields: str) -> tuple[Capability, ...]:
    return tuple(Capability(field, Support.NO_EFFECT, endpoints) for field in fields)


def _unsupported(
    endpoints: tuple[str, ...], **passing: tuple[object, ...]
) -> tuple[Capability, ...]:
    return tuple(
        Capability(field, Support.UNSUPPORTED, endpoints, values)
        for field, values in passing.items()
    )


CAPABILITIES: tuple[Capability, ...] = (
    *_no_effect(BOTH, "request_id", "user"),
    *_no_effect(
        (CHAT,),
        "metadata",
        "prediction",
        "safety_identifier",
        "service_tier",
        "store",
    ),
    *_unsupported(
        BOTH,
        beam_width=(),
        custom_params=(),
        detokenize=(True,),
        early_stopping=(False,),
        guided_decoding_backend=(),
        guided_whitespace_pattern=(),
        include_reasoning=(True,),
        kv_transfer_params=(),
        length_penalty=(1.0, 1),
        logits_processors=([],),
        lora=(),
        min_length=(0,),
        no_stop_trim=(False,),
        repetition_detection=(),
        return_hidden_states=(False,),
        spaces_between_special_tokens=(True,),
        thinking_token_budget=(),
        typical_p=(1.0, 1),
        use_beam_search=(False,),
        vllm_xargs=(),
    ),
    *_unsupported(
        (COMPLETIONS,),
        prompt_embeds=(),
        separate_reasoning=(True, False),
        stream_reasoning=(True, False),
    ),
    *_unsupported(
        (CHAT,),
        audio=(),
        best_of=(1,),
        mm_processor_kwargs=(),
        modalities=(["text"],),
        reasoning=(),
        separate_reasoning=(True,),
        stream_reasoning=(True,),
        verbosity=("medium",),
        web_search_options=(),
    ),
    *_no_effect(
        (RESPONSES,),
        "client_metadata",
        "max_tool_calls",
        "safety_identifier",
        "service_tier",
    ),
    *_unsupported(
        (RESPONSES,),
        access_programs=(),
        context_management=([],),
        conversation=(),
        image=(),
        moderation=(),
        prompt=(),
    ),
    *_no_effect((MESSAGES, COUNT_TOKENS), "diagnostics", "service_tier"),
    *_no_effect((COUNT_TOKENS,), "metadata"),
    *_unsupported(
        (MESSAGES, COUNT_TOKENS),
        billing_policy=(),
        compaction=(),
        container=("", {}),
        fallback_credit_token=(),
        fallbacks=([],),
        inference_geo=(),
        mcp_servers=([],),
        speed=("standard",),
        thread=(),
    ),
    *_no_effect((EMBEDDINGS, RERANK, SCORE), "request_id", "user"),
    *_unsupported(
        (RERANK,),
        max_chunks_per_doc=(),
        max_tokens_per_doc=(),
        rank_fields=(),
    ),
    *_unsupported((SCORE,), data_1=(), data_2=()),
    *_unsupported(
        (EMBEDDINGS,),
        add_generation_prompt=(False,),
        chat_template=(),
        chat_template_kwargs=({},),
        continue_final_message=(False,),
        embed_dtype=("float32",),
        embedding_type=(),
        endianness=("native", "little"),
        input_type=(),
        instruction=("",),
        late_chunking=(False,),
        messages=(),
        mm_processor_kwargs=(),
        prompt_name=(),
        task=("embed",),
    ),
)


@cache
def capabilities_of(endpoint: str, model: type[BaseModel]) -> Mapping[str, Capability]:
    """Return the fields that an endpoint, whose requests are of `model`, does not act on."""
    return {
        each.field: each
        for each in CAPABILITIES
        if endpoint in each.endpoints and each.field not in model.model_fields
    }


def capability_table(models: Mapping[str, type[BaseModel]]) -> Iterator[tuple[str, str, Support]]:
    """Yield endpoint, field and support of every field, for documentation and tests."""
    for endpoint, model in models.items():
        for field in model.model_fields:
            yield endpoint, field, Support.SUPPORTED
        for capability in capabilities_of(endpoint, model).values():
            yield endpoint, capability.field, capability.support
