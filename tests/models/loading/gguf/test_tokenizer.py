"""Tokenizers that are written to GGUF files, and read from them as the same tokenizers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from quire.models.config import CheckpointError
from quire.models.loading.gguf.pre_tokenizers import PRE_TOKENIZERS
from quire.models.loading.gguf.tokenizer import CONTROL, NORMAL, USER_DEFINED, build_tokenizer
from tests.models.loading.gguf.writer import Vocabulary, add_vocabulary, fields_of, write

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?",
    "def f(x):\n    return x ** 2\n\n\nprint(f(3))\t# 9",
    "Größenwahn, déjà vu, 東京 and Москва; naïve café 🎉",
    "   leading and trailing   ",
]
SPECIAL = "<|im_end|>"


def byte_level(name: str) -> Tokenizer:
    """A tokenizer that cuts words as that name says, trained on TEXTS."""
    known = PRE_TOKENIZERS[name]
    tokenizer = Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in known.patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer, name: str) -> Vocabulary:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [CONTROL if token == SPECIAL else NORMAL for token in tokens]
    merges = [" ".join(pair) for pair in model["merges"]]
    return Vocabulary("gpt2", tokens, {"pre": name, "token_type": types, "merges": merges})


def read_back(file: Path, vocabulary: Vocabulary) -> Tokenizer:
    writer = gguf.GGUFWriter(file, "llama")
    add_vocabulary(writer, vocabulary)
    write(writer)
    return Tokenizer.from_str(build_tokenizer(fields_of(file)).tokenizer)


@pytest.mark.parametrize("name", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-v3"])
def test_a_byte_level_tokenizer_is_the_one_that_was_written(name: str, tmp_path: Path) -> None:
    known = byte_level(name)
    found = read_back(tmp_path / "a.gguf", vocabulary_of(known, name))
    for text in [*TEXTS, f"hi{SPECIAL}there"]:
        expected = known.encode(text).ids
        assert found.encode(text).ids == expected
        assert found.decode(expected) == known.decode(expected)


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
WORDS = ["\u2581", "h", "e", "l", "o", "he", "ll", "llo", "hello", "\u2581hello", "lo", "\u2581h"]
SCORES = [-9.0, -10.0, -11.0, -12.0, -13.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0]


def sentence_piece(**more: bool | Sequence[int]) -> Vocabulary:
    """A vocabulary of few pieces, "he" the first that is merged, and bytes for all else."""
    types = [2, CONTROL, CONTROL, *[6] * 256, *[NORMAL] * len(WORDS)]
    fields: Mapping[str, bool | int | str | Sequence[int] | Sequence[float]] = {
        "token_type": types,
        "scores": [0.0] * len(PIECES) + SCORES,
        "bos_token_id": 1,
        "unknown_token_id": 0,
        **more,
    }
    return Vocabulary("llama", [*PIECES, *WORDS], fields)


def test_pieces_are_merged_by_their_scores(tmp_path: Path) -> None:
    found = read_back(tmp_path / "a.gguf", sentence_piece())
    assert found.encode("hello").tokens == ["<s>", "\u2581hello"]
    assert found.encode("lllo").tokens == ["<s>", "\u2581", "ll", "lo"]
    assert found.encode("x").tokens == ["<s>", "\u2581", "<0x78>"]
    assert found.decode(found.encode("hello hello é").ids) == "hello hello é"


def test_a_prefix_and_a_beginning_are_left_out_where_the_file_says_so(tmp_path: Path) -> None:
    plain = sentence_piece(add_space_prefix=False, add_bos_token=False)
    found = read_back(tmp_path / "a.gguf", plain)
    assert found.encode("hello").tokens == ["hello"]
    ended = sentence_piece(add_space_prefix=False, add_eos_token=True, eos_token_id=2)  # type: ignore[arg-type]
    found = read_back(tmp_path / "b.gguf", ended)
    assert found.encode("hello").tokens == ["<s>", "hello", "</s>"]


def test_what_a_user_defined_is_found_before_all_else(tmp_path: Path) -> None:
    types = [2, CONTROL, CONTROL, *[6] * 256, *[NORMAL] * len(WORDS)]
    types[len(PIECES) + WORDS.index("lo")] = USER_DEFINED
    found = read_back(tmp_path / "a.gguf", sentence_piece(token_type=types))
    assert found.encode("llo").tokens == ["<s>", "\u2581", "l", "lo"]


def test_runs_of_spaces_are_the_longest_from_the_left(tmp_path: Path) -> None:
    """As the tokenizer of Gemma 3 has 36 spaces as 31 and 5."""
    runs = [" " * length for length in range(2, 6)]
    vocabulary = Vocabulary(
        "llama",
        [*PIECES, "\u2581", *runs],
        {
            "token_type": [2, CONTROL, CONTROL, *[6] * 256, NORMAL, *[USER_DEFINED] * len(runs)],
            "scores": [0.0] * len(PIECES) + [-9.0] + [-1000.0] * len(runs),
            "unknown_token_id": 0,
            "add_space_prefix": False,
            "add_bos_token": False,
        },
    )
    found = read_back(tmp_path / "a.gguf", vocabulary)
    assert [len(token) for token in found.encode(" " * 13).tokens] == [5, 5, 3]


@given(text=st.text(max_size=30))
def test_any_text_comes_back(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "pieces.gguf"
    vocabulary = sentence_piece(add_space_prefix=False, add_bos_token=False)
    found = read_back(file, vocabulary)
    assert found.decode(found.encode(text).ids) == text.replace("\u2581", " ")


@pytest.mark.parametrize(
    ("vocabulary", "why"),
    [
        (Vocabulary("bert", ["a"], {}), "of the kind 'bert', must be one of"),
        (Vocabulary("gpt2", ["a"], {"pre": "palimpsest"}), "as 'palimpsest' does"),
        (Vocabulary("gpt2", ["a"], {"merges": ["abc"]}), "'abc' is not of two parts"),
        (Vocabulary("gpt2", ["a"], {"merges": ["a b"]}), "its tokenizer cannot be made"),
        (Vocabulary("gpt2", ["a"], {"token_type": [1, 1]}), "has 2 numbers for 1 tokens"),
        (Vocabulary("gpt2", ["a"], {"eos_token_id": 7}), "eos_token_id is 7, and it has 1 tokens"),
        (Vocabulary("gpt2", ["a"], {"eos_token_id": "x"}), "must be a whole number"),
        (Vocabulary("gpt2", ["a"], {"add_bos_token": 3}), "is 3, must be true or false"),
        (Vocabulary("llama", ["a"], {}), "it has no tokenizer.ggml.scores"),
        (
            Vocabulary("llama", ["a"], {"scores": [float("nan")]}),
            "scores holds numbers that",
        ),
        (Vocabulary("gpt2", [], {}), "it has no tokenizer.ggml.tokens"),
        (
            Vocabulary("gpt2", ["a" * 1025], {}),
            "a token of 1,025 characters, must be",
        ),
        (
            Vocabulary("gpt2", ["a"], {"add_bos_token": True, "bos_token_id": 9}),
            "bos_token_id is 9, and it has 1 tokens",
        ),
    ],
)
def test_a_vocabulary_that_is_none_is_told(
    vocabulary: Vocabulary, why: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="cannot be served") as refusal:
        read_back(tmp_path / "a.gguf", vocabulary)
    assert why in str(refusal.value)
