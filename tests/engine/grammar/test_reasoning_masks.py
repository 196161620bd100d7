"""Masks within the reasoning before an answer are computed once for all requests of a grammar."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from quire.engine.grammar.exact_tokenizer import build_vocabulary, read_tokenizer
from quire.engine.grammar.grammars import Grammars, build_grammars
from quire.engine.grammar.reasoning_masks import MAX_KEPT_MASKS
from quire.engine.sampling.logits_processor import ProcessorContext, RowEdits
from quire.scheduler.request import ReasoningTags, Sampling, Stopping
from quire.server.grammars.compose import compose
from quire.server.parsers.formats import ReasoningFormatName
from tests.engine.grammar.test_grammars import BUNDLED, END_IDS, TOKENIZER

pytest.importorskip("llguidance", reason="llguidance is not installed")

THINK = ReasoningFormatName.think.value
THOUGHT = "If a < b, then </b> is no tag. "
NUM_TOKENS = TOKENIZER.num_tokens


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = build_grammars(build_vocabulary(read_tokenizer(Path(BUNDLED)), NUM_TOKENS, END_IDS))
    yield made
    made.close()


def masks_of(
    grammars: Grammars, prompt: str, tags: ReasoningTags | None, text: str
) -> Sequence[Tensor]:
    """Return the masks before the tokens of a text that are not forced; those that are not computed
    again are the same tensors."""
    grammar = compose("body: %json {}", THINK, prompt=prompt, special_tokens={})
    if not grammars.hold("request", grammar):
        grammars.wait(60.0)
        grammars.take_compiled()
    sampling = Sampling(grammar=grammar, reasoning_tags=tags)
    stopping = Stopping(1000, eos_token_ids=END_IDS)
    context = ProcessorContext(sampling, stopping, (1,), 1, grammars.token_bytes)
    processor = grammars.build_processor(context)
    assert processor is not None
    found = []
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        edits = RowEdits(NUM_TOKENS)
        processor.edit(edits)
        processor.accept(token_id)
        assert not processor.has_failed
        if edits.decided is None:
            assert edits.mask is not None
            found.append(edits.mask)
    return found


def num_computed(masks: Sequence[Tensor]) -> int:
    return len({id(mask) for mask in masks})


@pytest.mark.parametrize("is_open", [False, True])
def test_a_long_reasoning_computes_few_masks(grammars: Grammars, is_open: bool) -> None:
    opens = "" if is_open else THINK.opens
    prompt, tags = THINK.opens if is_open else "Hi", ReasoningTags(opens, THINK.closes)
    first = masks_of(grammars, prompt, tags, opens + THOUGHT * 10)
    again = masks_of(grammars, prompt, tags, opens + THOUGHT * 10)
    num_before = 0 if is_open else 1
    kept = {id(mask) for mask in first}
    assert num_computed(first) <= num_before + MAX_KEPT_MASKS < len(first)
    assert all(id(mask) in kept for mask in again[num_before:])


def test_an_answer_has_masks_of_its_own(grammars: Grammars) -> None:
    """It may hold the tags, and is none of the reasoning."""
    tags = ReasoningTags(THINK.opens, THINK.closes)
    answer = '{"a": "<think>If a < b"}'
    masks = masks_of(grammars, "Hi", tags, answer)
    assert num_computed(masks) == len(masks)


def test_masks_are_computed_where_the_reasoning_is_not_known(grammars: Grammars) -> None:
    masks = masks_of(grammars, THINK.opens, None, THOUGHT)
    assert num_computed(masks) == len(masks)


def test_masks_of_half_characters_are_bounded(grammars: Grammars) -> None:
    """However many of them a hostile text begins, at most so many masks are kept."""
    text = "".join(chr(0x4E00 + 64 * index) for index in range(40))
    tags = ReasoningTags("", THINK.closes)
    masks_of(grammars, THINK.opens, tags, text)
    again = masks_of(grammars, THINK.opens, tags, text)
    assert MAX_KEPT_MASKS < num_computed(again) < len(again)
