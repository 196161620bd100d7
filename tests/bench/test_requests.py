"""Requests have the lengths of their workload or of a trace, and prompts of people are exact."""

from pathlib import Path

import pytest
from bench.prompts import Prompts
from bench.requests import Ask, Length, PeoplesPrompts, RequestSource, read_lengths
from bench.workloads import TRACED, WORKLOADS
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = tuple(f"w{index}" for index in range(200))
QUESTIONS = tuple(" ".join(WORDS[i : i + 40]) + " ?" for i in range(0, 200, 4))


@pytest.fixture
def tokenizer() -> Tokenizer:
    vocab = {word: index for index, word in enumerate((*WORDS, "?", "[UNK]"))}
    made = Tokenizer(WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    return made


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_of_people_have_the_lengths_of_their_workload(
    tokenizer: Tokenizer, name: str
) -> None:
    workload = WORKLOADS[name]
    source = RequestSource(PeoplesPrompts(tokenizer, QUESTIONS))
    asks = source.asks(workload, 1)
    assert len(asks) == workload.num_requests
    encoded = [tokenizer.encode(ask.prompt).ids for ask in asks]
    assert {len(ids) for ids in encoded} == {workload.num_prompt_tokens}
    assert {ask.num_output_tokens for ask in asks} == {workload.num_output_tokens}
    assert len({tuple(ids[: workload.num_shared_tokens]) for ids in encoded}) == 1
    assert asks == source.asks(workload, 1)
    assert not set(asks) & set(source.asks(workload, 2)), "rounds share no prompt"


def test_traced_requests_follow_the_trace_where_they_fit(tokenizer: Tokenizer) -> None:
    fitting = [Length(prompt, prompt % 300) for prompt in range(1, 101)]
    too_long = Length(TRACED.num_prompt_tokens + 1, 5)
    lengths = tuple(each for length in fitting for each in (length, too_long))
    source = RequestSource(Prompts(tokenizer, tuple(f" {word}" for word in WORDS)), lengths)
    asks = source.asks(TRACED, 1)
    found = [Length(len(tokenizer.encode(a.prompt).ids), a.num_output_tokens) for a in asks]
    first = fitting.index(found[0])
    assert found == fitting[first : first + TRACED.num_requests]
    assert isinstance(asks[0], Ask)


def test_outputs_are_cut_to_the_longest_of_the_workload(tokenizer: Tokenizer) -> None:
    lengths = (Length(3, 2 * TRACED.num_output_tokens),) * (TRACED.num_requests + 1)
    asks = RequestSource(PeoplesPrompts(tokenizer, QUESTIONS), lengths).asks(TRACED, 1)
    assert {ask.num_output_tokens for ask in asks} == {TRACED.num_output_tokens}


def test_lengths_are_read_in_the_order_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nmonday,374,44\ntuesday,12,1\n")
    assert read_lengths(path) == (Length(374, 44), Length(12, 1))
