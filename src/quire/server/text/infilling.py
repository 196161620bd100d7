"""Prompts for what stands between a text and its `suffix`, for models that were trained to fill in
the middle (Bavarian et al., 2022, "Efficient Training of Language Models to Fill in the Middle").
"""

from typing import NamedTuple

from quire.engine.grammar.token_bytes import TokenizerKind
from quire.server.text.tokenizer import TextTokenizer

_ISOLATED = "\u263a"
"""A character that no merge joins with what follows. A text behind it is encoded as one within a
sentence, which tokenizers of whole words would begin with a blank."""


class InfillingStyle(NamedTuple):
    """The texts of the tokens before the text, before its suffix and, unless it is the text that
    comes last, before the middle."""

    before_prefix: str
    before_suffix: str
    before_middle: str | None


STYLES = (
    InfillingStyle("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    InfillingStyle("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    InfillingStyle("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillingStyle("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),  # CodeLlama
    InfillingStyle(
        "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"
    ),  # DeepSeek-Coder
    InfillingStyle("[PREFIX]", "[SUFFIX]", None),  # Codestral
)


class Infilling(NamedTuple):
    """The token ids of a model's style; see InfillingStyle."""

    before_prefix: int
    before_suffix: int
    before_middle: int | None

    def join(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> tuple[int, ...]:
        """Return the prompt after which the model writes the middle, without a beginning of
        sequence."""
        if self.before_middle is None:
            return (self.before_suffix, *suffix, self.before_prefix, *prefix)
        return (self.before_prefix, *prefix, self.before_suffix, *suffix, self.before_middle)


def find_infilling(tokenizer: TextTokenizer) -> Infilling | None:
    """Return the style whose tokens the model has, None if it has none."""
    for style in STYLES:
        ids = [None if text is None else tokenizer.added_tokens.get(text) for text in style]
        prefix, suffix, middle = ids
        has_middle = middle is not None or style.before_middle is None
        if prefix is not None and suffix is not None and has_middle:
            return Infilling(prefix, suffix, middle)
    return None


def encode_suffix(text: str, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the token ids of a text that stands within another."""
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.token_bytes.kind is not TokenizerKind.BYTE_FALLBACK:
        return token_ids
    mark = tokenizer.encode(_ISOLATED, add_special_tokens=False)
    both = tokenizer.encode(_ISOLATED + text, add_special_tokens=False)
    return both[len(mark) :] if both[: len(mark)] == mark else token_ids
