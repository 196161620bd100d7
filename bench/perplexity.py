"""The perplexity of texts through a whole engine, in pieces of the model's context."""

import math
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from bench.in_process import build_quietly
from quire.engine.config import EngineConfig
from quire.engine.messages import EngineFacts
from quire.scheduler.request import NewRequest, Sampling, Stopping


def perplexity(config: EngineConfig, texts: Sequence[Sequence[int]]) -> tuple[float, EngineFacts]:
    """Return the perplexity of texts, each as tokens, and the facts of the engine of `config`.

    The first token of each piece is not scored. Raises ValueError.
    """
    engine, facts = build_quietly(config)
    length = facts.max_model_len - 1
    pieces = [
        text[first : first + length] for text in texts for first in range(0, len(text), length)
    ]
    for index, piece in enumerate(pieces):
        new = NewRequest(
            str(index),
            tuple(piece),
            Sampling(temperature=0.0),
            Stopping(max_tokens=1),
            prompt_logprobs=0,
        )
        refusal = engine.submit(new)
        if refusal is not None:
            raise ValueError(refusal.message)
    scores = []
    while engine.has_work:
        for delta in engine.step().deltas:
            scores += [score.logprob for score in delta.prompt_logprobs]
    return math.exp(-sum(scores) / len(scores)), facts


def encode(model_dir: Path, text: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    token_ids: list[int] = tokenizer.encode(text).ids
    return token_ids
