"""The checkpoint in the wheel stays small, loads with stock transformers, and reads English."""

import math
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

FOLDER = Path(str(files("quire.models") / "bundled"))
BOS, END = "<|endoftext|>", "<|end|>"

# From the part of the play that neither the tokenizer nor the model was trained on.
HELD_OUT_TEXT = """\
ALONSO:
What, all so soon asleep! I wish mine eyes
Would, with themselves, shut up my thoughts: I find
They are inclined to do so.

SEBASTIAN:
Please you, sir,
Do not omit the heavy offer of it:
It seldom visits sorrow; when it doth,
It is a comforter.

ANTONIO:
We two, my lord,
Will guard your person while you take your rest,
And watch your safety.
"""


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert isinstance(model, LlamaForCausalLM)
    return model


def render(
    tokenizer: PreTrainedTokenizerFast, *messages: dict[str, object], reply: bool = True
) -> str:
    text = tokenizer.apply_chat_template(
        list(messages),  # type: ignore[arg-type]  # contents in parts are missing in its types
        tokenize=False,
        add_generation_prompt=reply,
    )
    assert isinstance(text, str)
    return text


def test_files_fit_in_ten_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 10_000_000


@given(text=st.text())
def test_tokenizer_returns_any_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(token_ids) == text


def test_plain_text_opens_with_one_bos(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode(tokenizer.encode("Speak, speak.")) == f"{BOS}Speak, speak."


def test_special_tokens_stay_out_of_the_answer(tokenizer: PreTrainedTokenizerFast) -> None:
    text = render(tokenizer, {"role": "system", "content": ""}, {"role": "user", "content": "Ay."})
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(token_ids, skip_special_tokens=True) == "Ay."


def test_chat_renders_each_turn_between_its_marks(tokenizer: PreTrainedTokenizerFast) -> None:
    text = render(
        tokenizer,
        {"role": "system", "content": "You are Romeo."},
        {"role": "user", "content": " Good morrow, cousin.\n"},
        {"role": "assistant", "content": "Is the day so young?"},
        {"role": "user", "content": "But new struck nine."},
    )
    assert text == (
        f"{BOS}<|system|>You are Romeo.{END}"
        f"<|user|>Good morrow, cousin.{END}<|assistant|>Is the day so young?{END}"
        f"<|user|>But new struck nine.{END}<|assistant|>"
    )


def test_chat_without_a_reply_to_come_ends_with_the_turn(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    text = render(tokenizer, {"role": "user", "content": "Ay."}, reply=False)
    assert text == f"{BOS}<|user|>Ay.{END}"


@given(pieces=st.lists(st.text()))
def test_text_parts_render_as_the_joined_string(
    tokenizer: PreTrainedTokenizerFast, pieces: list[str]
) -> None:
    parts = [{"type": "text", "text": piece} for piece in pieces]
    whole = render(tokenizer, {"role": "user", "content": "".join(pieces)})
    assert render(tokenizer, {"role": "user", "content": parts}) == whole


@pytest.mark.parametrize(
    "message",
    [
        {"role": "oracle", "content": "Ay."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]},
    ],
)
def test_chat_that_the_model_cannot_read_is_refused(
    tokenizer: PreTrainedTokenizerFast, message: dict[str, object]
) -> None:
    with pytest.raises(Exception, match="unknown role|only text parts"):
        render(tokenizer, message)


def test_generation_ends_at_a_turn_or_a_text(tokenizer: PreTrainedTokenizerFast) -> None:
    defaults = GenerationConfig.from_pretrained(FOLDER)
    assert defaults.eos_token_id == tokenizer.convert_tokens_to_ids([END, BOS])


def test_stored_weights_are_bf16_and_their_shapes_suit_paging(model: LlamaForCausalLM) -> None:
    config, num_kv_heads = model.config, model.config.num_key_value_heads
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert num_kv_heads is not None and num_kv_heads < config.num_attention_heads
    assert config.num_attention_heads % num_kv_heads == 0
    assert config.head_dim is not None and config.head_dim % 32 == 0
    assert config.max_position_embeddings == 1024


def test_unseen_text_is_far_likelier_than_chance(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    token_ids = torch.tensor([tokenizer.encode(HELD_OUT_TEXT)])
    with torch.inference_mode():
        loss = model(input_ids=token_ids, labels=token_ids).loss.item()
    assert loss < 4.5 < math.log(model.config.vocab_size)


@pytest.mark.parametrize(
    "fact", ["Tiny Shakespeare", "public domain", "Apache-2.0", "steps", "Validation loss"]
)
def test_card_tells_how_the_model_was_made(fact: str) -> None:
    assert fact in (FOLDER / "README.md").read_text(encoding="utf-8")
