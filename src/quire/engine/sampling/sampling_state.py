"""The live sampling state of one running request: what it asked, its tokens, and how often each
was sampled.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.scheduler.request import Sampling, Stopping


@dataclass(slots=True)
class SeenTokens:
    """The distinct ids of a row in order of first sight, and the times each was an output.

    It follows the row's tokens lazily, so it is the same whether the row grew here or was resumed.
    """

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    counts: "array[int]" = field(default_factory=lambda: array("q"))
    _places: dict[int, int] = field(default_factory=dict, init=False)
    _num_followed: int = field(default=0, init=False)

    def follow(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        for position in range(self._num_followed, len(token_ids)):
            token_id = token_ids[position]
            place = self._places.setdefault(token_id, len(self.ids))
            if place == len(self.ids):
                self.ids.append(token_id)
                self.counts.append(0)
            self.counts[place] += position >= num_prompt_tokens
        self._num_followed = len(token_ids)

    def index_of(self, token_id: int) -> int | None:
        return self._places.get(token_id)


@dataclass(slots=True, eq=False)
class SamplingState:
    """`token_ids` is the prompt and the outputs so far; its owner, the runner, only ever appends
    to it.
    """

    sampling: Sampling
    stopping: Stopping
    token_ids: list[int]
    num_prompt_tokens: int
    _seen: SeenTokens = field(default_factory=SeenTokens, init=False)

    @property
    def position(self) -> int:
        """The index in the sequence of the token to draw."""
        return len(self.token_ids)

    @property
    def num_outputs(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def has_penalties(self) -> bool:
        params = self.sampling
        return bool(
            params.repetition_penalty != 1.0 or params.frequency_penalty or params.presence_penalty
        )

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """The ids that would end the request before its least number of outputs."""
        if self.num_outputs >= self.stopping.min_tokens:
            return ()
        return self.stopping.eos_token_ids + self.stopping.stop_token_ids

    @property
    def has_logits_processors(self) -> bool:
        """Does the row ask for other logits than the model's?"""
        return bool(self.sampling.logit_bias or self.has_penalties or self.banned_token_ids)

    @property
    def is_greedy_only(self) -> bool:
        """Is the model's largest logit all that is asked of it?"""
        params = self.sampling
        return (
            params.temperature == 0
            and params.num_logprobs is None
            and not self.has_logits_processors
        )

    def seen(self) -> SeenTokens:
        self._seen.follow(self.token_ids, self.num_prompt_tokens)
        return self._seen
