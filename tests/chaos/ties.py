"""Tells a rounding tie from a wrong token. A number is drawn between 0 and 1, and the token is the
one in whose part of that it falls: where it falls on the border of two, to the last digits of
float32, the order of a sum decides, and with it the company that a request has in the batch.

The model computes the step once more, in float64, by transformers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from quire.engine.sampling.noise import uniform
from quire.server.generation.engine_requests import choice_seed
from tests.chaos.answers import Answer, Choice
from tests.chaos.mix import EDITED, Ask

MOST_OFF = 1e-5
"""Several times what log probabilities of undisturbed runs differ by: 2e-6."""


@dataclass(slots=True)
class Judge:
    """Knows the weights that are served, and counts the ties that it has found."""

    folder: Path
    num_ties: int = 0
    loaded: list[PreTrainedModel] = field(default_factory=list)

    def are_ties(self, ask: Ask, calm: Answer, seen: Answer) -> bool:
        """Return whether all choices whose tokens differ do so from a tie on, and nothing else is
        wrong with the answer."""
        if (seen.status, seen.error, seen.fault) != (calm.status, calm.error, calm.fault):
            return False
        if not seen.choices.keys() <= calm.choices.keys() or ask.way in EDITED:
            return False
        differing = [
            index
            for index, choice in seen.choices.items()
            if parting(calm.choices[index].token_ids, choice.token_ids) is not None
        ]
        ties = [
            self._is_tie(ask, index, calm.choices[index], seen.choices[index])
            for index in differing
        ]
        self.num_ties += bool(ties) and all(ties)
        return bool(ties) and all(ties)

    def _is_tie(self, ask: Ask, index: int, calm: Choice, seen: Choice) -> bool:
        at = parting(calm.token_ids, seen.token_ids)
        assert at is not None
        before = [*calm.prompt_token_ids, *calm.token_ids[:at]]
        tokens = calm.token_ids[at], seen.token_ids[at]
        logits = self._logits(before)
        temperature, top_k, seed = (
            ask.body.get(name, 0) for name in ("temperature", "top_k", "seed")
        )
        assert (
            isinstance(temperature, int | float)
            and isinstance(top_k, int)
            and isinstance(seed, int)
        )
        if temperature == 0:
            return float((logits.max() - logits[list(tokens)]).max()) <= MOST_OFF
        drawn = uniform(choice_seed(seed, index), len(before))
        return all(is_near(shares(logits / temperature, top_k), token, drawn) for token in tokens)

    def _logits(self, token_ids: Sequence[int]) -> Tensor:
        if not self.loaded:
            self.loaded.append(
                AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float64)
            )
        with torch.inference_mode():
            logits: Tensor = self.loaded[0](torch.tensor([token_ids])).logits[0, -1]
        return logits.clone()


def parting(was: Sequence[int], now: Sequence[int]) -> int | None:
    """Return the first place at which two outputs have different tokens; None where one is the
    beginning of the other."""
    places = range(min(len(was), len(now)))
    return next((place for place in places if was[place] != now[place]), None)


def shares(logits: Tensor, top_k: int) -> Tensor:
    """Return the probabilities [vocab_size] of the likeliest `top_k`, all others 0."""
    least = logits.topk(top_k).values[-1]
    return logits.masked_fill(logits < least, -torch.inf).softmax(-1)


def is_near(probabilities: Tensor, token: int, drawn: float) -> bool:
    """Return whether a number falls into a token's part, or as near to it as rounding is."""
    ends = probabilities.cumsum(0)
    end = float(ends[token])
    begin = end - float(probabilities[token])
    return begin - MOST_OFF <= drawn <= end + MOST_OFF and float(probabilities[token]) > 0
