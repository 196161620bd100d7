"""Prompts of an exact token count, the same for every server of a round.

They are made of whole ' word' tokens, which a byte-level BPE neither splits nor merges.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from quire.workbench.bench.workloads import Workload

WORD_TOKEN = re.compile(r"^Ġ[a-z]{2,}$")
MIN_WORDS = 100


@dataclass(frozen=True, slots=True)
class Prompts:
    """Draws prompts from a tokenizer's words; equal seeds give equal prompts."""

    tokenizer: Tokenizer
    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """The kind of prompts."""
        return "words"

    def texts(self, workload: Workload, seed: int) -> list[str]:
        """One prompt for each request of the workload; only the shared part is common to them."""
        shared = self.text(f"{seed}/{workload.name}/shared", workload.num_shared_tokens)
        drawn = [
            shared + self.text(f"{seed}/{workload.name}/{index}", workload.num_unique_tokens)
            for index in range(workload.num_requests)
        ]
        for encoded in self.tokenizer.encode_batch(drawn, add_special_tokens=False):
            if len(encoded.ids) != workload.num_prompt_tokens:
                raise SystemExit(f"a prompt has {len(encoded.ids)} tokens: {workload}")
        return drawn

    def text(self, seed: str, num_tokens: int) -> str:
        """Return a prompt of so many tokens; equal seeds give equal prompts."""
        return "".join(random.Random(seed).choices(self.words, k=num_tokens))


def build_prompts(model_dir: Path) -> Prompts:
    """Find the words of a model's tokenizer that stand for one token each."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    candidates = sorted(index for token, index in vocab.items() if WORD_TOKEN.match(token))
    texts = tokenizer.decode_batch([[index] for index in candidates])
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    words = tuple(
        text
        for index, text, again in zip(candidates, texts, encoded, strict=True)
        if again.ids == [index]
    )
    if len(words) < MIN_WORDS:
        raise SystemExit(f"{model_dir}: only {len(words)} words of one token in that tokenizer")
    return Prompts(tokenizer, words)
