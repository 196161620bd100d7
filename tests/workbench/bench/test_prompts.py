"""Prompts are as long as asked, alike where they should be, and new in every round."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from quire.workbench.bench.prompts import PromptGenerator, WordRate, rate_from
from quire.workbench.bench.workloads import WORKLOADS, Workload

workloads = st.builds(
    Workload,
    name=st.just("some"),
    purpose=st.just(""),
    concurrency=st.just(1),
    num_requests=st.integers(1, 4),
    num_shared_tokens=st.integers(0, 60),
    num_unique_tokens=st.integers(1, 60),
    num_output_tokens=st.just(1),
)
POOL = tuple(range(100, 400))


@given(workloads, st.integers(0, 1 << 32))
def test_token_ids_are_exact_and_begin_alike(workload: Workload, seed: int) -> None:
    prompts = PromptGenerator(WordRate(1, 0), POOL).generate(workload, seed)
    num_shared = workload.num_shared_tokens
    assert len(prompts) == workload.num_requests
    assert all(len(prompt) == workload.num_prompt_tokens for prompt in prompts)
    assert {tuple(prompt[:num_shared]) for prompt in prompts} == {tuple(prompts[0][:num_shared])}
    assert prompts == PromptGenerator(WordRate(1, 0), POOL).generate(workload, seed)


@given(st.integers(1, 5), st.integers(0, 30), st.integers(1, 300))
def test_words_make_the_tokens_that_the_rate_says(per_word: int, extra: int, wanted: int) -> None:
    rate = rate_from((16, 16 * per_word + extra), (64, 64 * per_word + extra))
    made = rate.num_words(wanted) * per_word + extra
    assert made - per_word - extra <= wanted <= max(made + per_word, extra + per_word)


def test_rounds_share_no_prompt() -> None:
    prompts = PromptGenerator(WordRate(1.3, 1))
    workload = WORKLOADS["throughput"]
    first, second = prompts.generate(workload, 1), prompts.generate(workload, 2)
    assert len({str(prompt) for prompt in first + second}) == 2 * workload.num_requests


@given(workloads, st.integers(1, 2000))
def test_other_length_keeps_the_share_that_is_shared(workload: Workload, wanted: int) -> None:
    other = workload.with_prompt(wanted)
    assert other.num_prompt_tokens == wanted
    assert other.num_unique_tokens >= 1
    exact = Fraction(workload.num_shared_tokens * wanted, workload.num_prompt_tokens)
    assert other.num_shared_tokens <= exact < other.num_shared_tokens + 1
