"""Ways of cutting texts into words, within which BPE merges, by the names that GGUF files give.

Source: the `tokenizer.json` of the models that each name was made for; llama.cpp's
`llama-vocab.cpp` has the same by these names.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
"""Words that end before the next capital letter."""
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REST_AND_SLASHES = REST.replace(r"[\r\n]*", r"[\r\n/]*")
DEEPSEEK_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(NamedTuple):
    """`patterns` split the text in sequence, each the pieces of the previous ones. A word that is a
    token is used as such if the merges are ignored."""

    patterns: tuple[str, ...]
    ignores_merges: bool = False
    composes: bool = False
    """Whether characters are composed first (NFC)."""


def _words(digits: str, letters: str = r"\p{L}+") -> str:
    return rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}|{digits}|{REST}"


GPT2 = PreTokenizer((GPT2_WORDS,))
STARCODER = PreTokenizer((r"\p{N}", GPT2_WORDS))
LLAMA3 = PreTokenizer((_words(r"\p{N}{1,3}"),), ignores_merges=True)
QWEN2 = PreTokenizer((_words(r"\p{N}"),), composes=True)
TEKKEN = PreTokenizer(("|".join((*CASED, r"\p{N}", REST_AND_SLASHES)),), ignores_merges=True)
GPT4O = PreTokenizer(
    ("|".join((*(f"{each}{CONTRACTIONS}?" for each in CASED), r"\p{N}{1,3}", REST_AND_SLASHES)),),
    ignores_merges=True,
)
DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK_WORDS))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        **dict.fromkeys(("gpt-2", "phi-2", "olmo", "exaone4", "trillion", "mpt"), GPT2),
        **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "exaone"), STARCODER),
        **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "pixtral"), LLAMA3),
        **dict.fromkeys(("dbrx", "smaug-bpe"), LLAMA3._replace(ignores_merges=False)),
        **dict.fromkeys(("glm4", "chatglm-bpe"), LLAMA3._replace(ignores_merges=True)),
        **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan"), QWEN2),
        "stablelm2": QWEN2,
        "qwen35": PreTokenizer(
            (
                _words(r"\p{N}", r"[\p{L}\p{M}]+").replace(
                    r" ?[^\s\p{L}\p{N}]", r" ?[^\s\p{L}\p{M}\p{N}]"
                ),
            ),
            composes=True,
        ),
        "tekken": TEKKEN,
        **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
        **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), DEEPSEEK3),
    }
)
