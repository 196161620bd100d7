"""A text of Quire's own in a checkpoint's tokens: how large activations are in texts, and what
quantised weights change in one."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from quire.models.config import FORWARD_ERRORS
from quire.models.loading.checks.measure import ONE_GROUP
from quire.models.loading.checks.packing import BLOCK_SIZE, NUM_STATES, logits_of
from quire.models.loading.loaded_model import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENIZER = "tokenizer.json"
TEXT = """The ferry leaves the harbour at 7:45 every morning, except on Sundays: then it stays.

def mean(numbers):
    return sum(numbers) / len(numbers)

1. Wash the rice until the water is clear.
2. Add 350 ml of water and a little salt.

"Why did you come back?" she asked. He looked at the letter and said nothing.
La biblioteca está cerrada; 图书馆明天开放。
"""
MAX_TOKENS = 128


class Loss(NamedTuple):
    """The change that other weights make to the text: its perplexity before and after, the mean
    divergence of the next token's distribution in nats, and how many of its tokens were scored."""

    before: float
    after: float
    divergence: float
    num_tokens: int


class OwnText(NamedTuple):
    """The tokens of TEXT, and their logits [tokens, vocab_size] over the weights as they were
    read."""

    token_ids: tuple[int, ...]
    logits: Tensor

    def loss(self, loaded: LoadedModel) -> Loss:
        """Return the change caused by the current weights of `loaded`."""
        count = len(self.token_ids)
        num_blocks = 2 + count // BLOCK_SIZE
        model = loaded.attach(num_blocks, BLOCK_SIZE, ONE_GROUP, num_states=NUM_STATES)
        found = logits_of(model, self.token_ids, range(count), loaded.device)
        before, after = (rows[:-1].float().log_softmax(-1) for rows in (self.logits, found))
        targets = torch.tensor(self.token_ids[1:], device=before.device)[:, None]
        was, now = (float((-rows.gather(1, targets).mean()).exp()) for rows in (before, after))
        divergence = float((before.exp() * (before - after)).sum(-1).mean())
        return Loss(was, now, divergence, count - 1)


def read_own_text(folder: Path, module: "PreTrainedModel", max_len: int) -> OwnText | None:
    """Run TEXT, or its first `max_len` tokens, through a module by the attention that it has now.

    Returns None where the folder has no tokenizer that `tokenizers` reads, where nothing is left to
    score, or where the forward fails.
    """
    path = folder / TOKENIZER
    if not path.is_file():
        return None
    try:
        token_ids = Tokenizer.from_file(str(path)).encode(TEXT).ids[: min(MAX_TOKENS, max_len)]
    except Exception:  # noqa: BLE001 -- the library raises nothing more specific
        return None
    if len(token_ids) < 2:
        return None
    try:
        with torch.inference_mode():
            device = next(module.parameters()).device
            ids = torch.tensor([token_ids], device=device)
            logits = module(input_ids=ids, use_cache=False).logits[0]
    except FORWARD_ERRORS:
        return None
    return OwnText(tuple(token_ids), logits) if logits.isfinite().all() else None
