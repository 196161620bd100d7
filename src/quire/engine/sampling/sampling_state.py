"""The sampling state of one running request: its parameters, its tokens, and how often each of
them was sampled.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.scheduler.request import Sampling, Stopping


@dataclass(slots=True)
class SeenTokens:
    """The distinct token ids of a request in order of first occurrence, and how often each is among
    its outputs.

    They are updated when they are needed, so that a resumed request has the same as any other.
    """

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    _indices: dict[int, int] = field(default_factory=dict, init=False)
    _num_seen: int = field(default=0, init=False)

    def update(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Count the tokens that were appended since the last call."""
        for position in range(self._num_seen, len(token_ids)):
            token_id = token_ids[position]
            index = self._indices.setdefault(token_id, len(self.ids))
            if index == len(self.ids):
                self.ids.append(token_id)
                self.counts.append(0)
            self.counts[index] += position >= num_prompt_tokens
        self._num_seen = len(token_ids)

    def index_of(self, token_id: int) -> int | None:
        """Return the index of an id in `ids`, or None if it did not occur."""
        return self._indices.get(token_id)


@dataclass(slots=True, eq=False)
class SamplingState:
    """What the next token of a request is sampled from, beside its logits.

    `token_ids` are the prompt and the outputs so far; the runner owns them and only appends.
    """

    sampling: Sampling
    stopping: Stopping
    token_ids: list[int]
    num_prompt_tokens: int
    _seen: SeenTokens = field(default_factory=SeenTokens, init=False)

    @property
    def position(self) -> int:
        """The index in the sequence of the token to sample next."""
        return len(self.token_ids)

    @property
    def num_outputs(self) -> int:
        """The number of tokens that were sampled."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_penalties(self) -> bool:
        """Whether a repetition, frequency or presence penalty is on."""
        params = self.sampling
        return bool(
            params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
        )

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """The ids that would end the request before it has `min_tokens` outputs."""
        if self.num_outputs >= self.stopping.min_tokens:
            return ()
        return self.stopping.eos_token_ids + self.stopping.stop_token_ids

    @property
    def has_logits_processors(self) -> bool:
        """Whether the request changes logits before it samples."""
        return bool(self.sampling.logit_bias or self.has_penalties or self.banned_token_ids)

    @property
    def is_greedy_only(self) -> bool:
        """Whether the argmax of the model's logits is all that is needed."""
        params = self.sampling
        return (
            params.temperature == 0
            and params.num_logprobs is None
            and not self.has_logits_processors
        )

    def seen(self) -> SeenTokens:
        """Return the counts of all tokens so far."""
        self._seen.update(self.token_ids, self.num_prompt_tokens)
        return self._seen
