"""The sampling of outputs, as a program gives it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling of outputs, and what ends them. Names, ranges and meanings are those of the HTTP
    API; None leaves a field to the model's defaults, and `max_tokens` to 16 tokens behind a prompt
    and to the rest of the context in a chat.

    logprobs: the number of likeliest tokens that each token of an output is told with.
    structured_outputs: what an output must be of: one of `json`, `regex`, `choice`, `grammar`.
    """

    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    logprobs: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: Mapping[str, object] | None = None

    def completion_fields(self) -> dict[str, object]:
        """Return the fields of a completion."""
        return dict(self._given())

    def chat_fields(self) -> dict[str, object]:
        """Return the fields of a chat, which names log probabilities otherwise."""
        given = dict(self._given())
        if "logprobs" in given:
            given["top_logprobs"] = given["logprobs"]
            given["logprobs"] = True
        return given

    def _given(self) -> Iterator[tuple[str, object]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                yield field.name, value
