"""Ranks capture the same steps, collectives among them, and replay them together. Shown on a
stand-in for a GPU's graphs, whose captures write collectives down and wait for nobody."""

from typing import NamedTuple

import pytest

from quire.models.graphs.recorded import NO_MEMORY
from tests.long import long_but_for
from tests.models.graphs.device import Fault
from tests.models.parallel.captured_jobs import (
    CaptureAnswer,
    CaptureQuestion,
    ask_captured,
)
from tests.models.parallel.rank_processes import RankProcesses
from tests.models.reference import NUM_NEW, References, fidelity_prompts

NUM_SEQS = 6
SIZES = (6, 4, 2, 1)
PIECES = (96, 64, 32)


class Lack(NamedTuple):
    """The rank that lacks memory for the capture of one number, or for all, at which point of it,
    and what is captured then."""

    fault: Fault
    rank: int
    at: int | None
    captured: tuple[int, ...]


FAULTS = ((Fault.UNSEEN_WAIT, 0, 2), (Fault.ASYNC, 1, 0), (Fault.BEGIN, 1, 3), (Fault.END, 0, 0))
"""Each with the rank that has it and the capture; the first in every run: all end a capture."""
LACKS = (
    Lack(Fault.MEMORY, 0, 0, (2, 1)),
    Lack(Fault.GRAPH_MEMORY, 1, 0, (2, 1)),
    Lack(Fault.MEMORY, 1, 2, (6, 4)),
    Lack(Fault.GRAPH_MEMORY, 1, None, ()),
)
"""The first two in every run: one of either kind, on either rank."""


def ask(
    ranks: RankProcesses, references: References, question: CaptureQuestion, family: str
) -> tuple[CaptureAnswer, CaptureAnswer]:
    """Return what two ranks say, which is what `generate` says."""
    one, other = ranks.run(ask_captured, question)
    num_new = question.num_new
    wanted = [text[:num_new] for text in references.greedy_texts(family)[:NUM_SEQS]]
    assert one.texts == other.texts == wanted
    return one, other


def question_of(
    references: References,
    family: str = "llama",
    fault: Fault | None = None,
    faulty: frozenset[int] = frozenset(),
    faulty_rank: int = 0,
) -> CaptureQuestion:
    num_new = NUM_NEW if fault is None else 4
    prompts = [list(prompt) for prompt in fidelity_prompts()[:NUM_SEQS]]
    folder = references.checkpoint(family)
    return CaptureQuestion(folder, prompts, num_new, fault, faulty, faulty_rank)


@long_but_for(["llama"], "family", ["llama", "gemma2", "qwen2_moe", "stories260K"])
def test_two_ranks_that_replay_say_what_generate_says(
    family: str, two_ranks: RankProcesses, references: References
) -> None:
    answers = ask(two_ranks, references, question_of(references, family), family)
    for answer in answers:
        assert answer == answers[0]
        assert answer.decode == (NUM_SEQS, len(SIZES), "")
        assert answer.pieces[0] == PIECES[0] and answer.pieces[1] % len(PIECES) == 0
        assert min(answer.replays) >= NUM_NEW


@long_but_for(FAULTS[:1], "fault, faulty_rank, at", FAULTS)
def test_what_one_rank_cannot_capture_none_captures(
    fault: Fault, faulty_rank: int, at: int, two_ranks: RankProcesses, references: References
) -> None:
    question = question_of(references, "llama", fault, frozenset({at}), faulty_rank)
    answers = ask(two_ranks, references, question, "llama")
    for rank, answer in enumerate(answers):
        largest, num_graphs, why_not = answer.decode
        assert largest == num_graphs == answer.replays[0] == 0
        assert why_not.startswith("another rank") is (rank != faulty_rank)
        assert answer.pieces[0] == PIECES[0]


@pytest.mark.parametrize(
    "lack", [*LACKS[:2], *(pytest.param(lack, marks=pytest.mark.long) for lack in LACKS[2:])]
)
def test_sizes_are_those_that_the_rank_with_the_least_memory_has(
    lack: Lack, two_ranks: RankProcesses, references: References
) -> None:
    faulty = frozenset(range(len(SIZES)) if lack.at is None else [lack.at])
    question = question_of(references, "llama", lack.fault, faulty, lack.rank)
    for answer in ask(two_ranks, references, question, "llama"):
        why_not = "" if lack.captured else NO_MEMORY
        assert answer.decode == (max(lack.captured, default=0), len(lack.captured), why_not)


def test_what_a_check_finds_on_one_rank_is_refused_by_all(
    two_ranks: RankProcesses, references: References
) -> None:
    question = question_of(references, "llama", Fault.CROSSING, frozenset({1}), 1)
    first, second = ask(two_ranks, references, question, "llama")
    assert first.decode == (0, 0, "another rank cannot capture it, and its log says why")
    assert second.decode == (0, 0, "numbers pass between host and device, in the step")


@pytest.mark.long  # in every run a rank lacks memory for a capture
def test_a_rank_without_memory_for_a_step_that_others_compute_ends(references: References) -> None:
    """They wait for it, until the engine ends them."""
    ranks = RankProcesses(2)
    try:
        fault, faulty = Fault.CHECK_MEMORY, frozenset({0})
        ranks.begin(ask_captured, question_of(references, "llama", fault, faulty, faulty_rank=1))
        error = str(ranks.answer(1))
    finally:
        ranks.close()
    told = f"rank 1 of 2 has no memory for a step of {NUM_SEQS} tokens"
    assert "TooLittleMemory" in error and told in error and "--enforce-eager" in error
